"""Exports a small network, its gradient and its Hessian as ONNX models, for a static page."""

import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor, nn

import torchlayers as tl

HERE = Path(__file__).parent


def trained() -> nn.Module:
    """A network of two inputs, trained on a few waves."""
    torch.manual_seed(0)
    layers = nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(300):
        points = 4 * torch.rand(256, 2) - 2
        wanted = (2 * points[:, :1]).sin() * (1.5 * points[:, 1:]).cos()
        loss = (network(points) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.requires_grad_(False)


def at_point(network: nn.Module):
    """Returns the function of a point that the page shows."""

    def value_at(point: Tensor) -> Tensor:
        return network(point).squeeze()

    def shown(point: Tensor) -> dict[str, Tensor]:
        return {
            "value": value_at(point),
            "slope": tl.grad(value_at)(point),
            "curvature": tl.hessian(value_at)(point),
        }

    return shown


def write_models(network: nn.Module, folder: Path) -> None:
    def prediction(points: Tensor) -> Tensor:
        return tl.vmap(lambda point: network(point).squeeze())(points)

    tl.export(at_point(network), torch.zeros(2)).to_onnx(folder / "at_point.onnx")
    exported = tl.export(prediction, torch.zeros(9, 2), dynamic=({0: "cells"},))
    exported.to_onnx(folder / "prediction.onnx")


def build(folder: Path) -> nn.Module:
    """Puts the page, onnxruntime-web (by npm) and the models in a folder; returns the network."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "package.json", folder)
    subprocess.run(["npm", "install", "--silent"], cwd=folder, check=True)
    runtime = folder / "node_modules" / "onnxruntime-web" / "dist"
    for name in ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
        shutil.copy(runtime / name, folder)
    for name in ("index.html", "page.js"):
        shutil.copy(HERE / name, folder)
    network = trained()
    write_models(network, folder)
    return network
