"""The smallest cut of a network, by augmenting paths (Dinic's algorithm)."""

from collections import deque
from collections.abc import Hashable

_UNBOUNDED = 1 << 100


class Network:
    """Places, and edges with a capacity between them; None is no bound."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._leaving: list[list[int]] = []  # of each place, its edges
        self._to: list[int] = []  # of each edge; the opposite of edge e is e ^ 1
        self._room: list[int] = []

    def edge(self, start: Hashable, end: Hashable, capacity: int | None) -> None:
        first, second = self._place(start), self._place(end)
        self._leaving[first].append(len(self._to))
        self._leaving[second].append(len(self._to) + 1)
        self._to += [second, first]
        self._room += [_UNBOUNDED if capacity is None else capacity, 0]

    def smallest_cut(self, source: Hashable, sink: Hashable) -> set[Hashable]:
        """The places on the source's side of the smallest cut, the one closest to the source."""
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
        """From the start, over edges that have room left; -1 where there is no way."""
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
        """Uses up all the shortest paths."""
        next_edge = [0] * len(self._leaving)  # those before it lead nowhere any more
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
