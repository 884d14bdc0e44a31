"""Minimum cut of a flow network, by augmenting paths (Dinic's algorithm)."""

from collections import deque
from collections.abc import Hashable

_UNBOUNDED = 1 << 100


class Network:
    """A flow network: nodes, called places, and edges with capacities; None means unbounded."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._leaving: list[list[int]] = []  # the outgoing edges of each place
        self._to: list[int] = []  # the end of each edge; the reverse of edge e is e ^ 1
        self._room: list[int] = []  # the residual capacity of each edge

    def edge(self, start: Hashable, end: Hashable, capacity: int | None) -> None:
        first, second = self._place(start), self._place(end)
        self._leaving[first].append(len(self._to))
        self._leaving[second].append(len(self._to) + 1)
        self._to += [second, first]
        self._room += [_UNBOUNDED if capacity is None else capacity, 0]

    def smallest_cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """Returns the source's side of the minimum cut; of several, the cut nearest the source."""
        start, end = self._place(source), self._place(sink)
        while (distance := self._distances(start))[end] >= 0:
            self._fill(start, end, distance)
        return {name for name, place in self._number.items() if distance[place] >= 0}

    def _place(self, name: Hashable) -> int:
        if name not in self._number:
            self._number[name] = len(self._leaving)
            self._leaving.append([])
        return self._number[name]

    def _distances(self, start: int) -> list[int]:
        """Distances from the start along edges with capacity left; -1 for unreachable places."""
        distance = [-1] * len(self._leaving)
        distance[start] = 0
        waiting = deque([start])
        while waiting:
            place = waiting.popleft()
            for edge in self._leaving[place]:
                to = self._to[edge]
                if self._room[edge] and distance[to] < 0:
                    distance[to] = distance[place] + 1
                    waiting.append(to)
        return distance

    def _fill(self, start: int, end: int, distance: list[int]) -> None:
        """Saturates all shortest paths (a blocking flow)."""
        next_edge = [0] * len(self._leaving)  # earlier edges are exhausted
        path: list[int] = []
        place = start
        while True:
            if place == end:
                amount = min(self._room[edge] for edge in path)
                for edge in path:
                    self._room[edge] -= amount
                    self._room[edge ^ 1] += amount
                full = next(i for i, edge in enumerate(path) if not self._room[edge])
                place = self._to[path[full] ^ 1]
                del path[full:]
                continue
            edges = self._leaving[place]
            while next_edge[place] < len(edges):
                edge = edges[next_edge[place]]
                if self._room[edge] and distance[self._to[edge]] == distance[place] + 1:
                    break
                next_edge[place] += 1
            if next_edge[place] < len(edges):
                path.append(edges[next_edge[place]])
                place = self._to[path[-1]]
            elif path:
                place = self._to[path.pop() ^ 1]
                next_edge[place] += 1
            else:
                return
