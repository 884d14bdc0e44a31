"""``python -m benchmarks.headline``: copies a few rows of the tables in docs/ to README.md and the
site's first page, so that their figures are those of the tables."""

import re

from benchmarks import page

PAGES = ("../README.md", "index.md")  # in docs/
NAME = "headline"
# Each row's first two cells, where it is, and its unit.
ROWS = (
    ("Hessian of an MLP", "8 x 8", "workloads, one", "µs"),
    ("per-sample gradients, digits CNN", "8 images", "workloads, one", "µs"),
    (
        "per-sample gradients, ResNet",
        "7 convolutions, 16 images of 32 x 32",
        "real size, one",
        "ms",
    ),
    ("grad, PINN's Laplacian loss", "3 x 128 wide, 2,048 points", "real size, one", "ms"),
    (
        *("Hessian-vector product, transformer", "3 blocks, 128 wide, 8 x 63 words"),
        *("real size, one", "ms"),
    ),
)
PEERS = ("torch.func", "torch.func compiled", "JAX jit", "torchlayers", "torchlayers compiled")
OPERATORS = ("grad", "jvp", "vmap")


def block(link: str) -> str:
    """The rows, and the cost of an operator; ``link`` is the folder of docs/, from the page."""
    tables = {name: cells(name, "workloads.md") for _, _, name, _ in ROWS}
    rows = []
    for what, size, name, unit in ROWS:
        header, *lines = tables[name]
        (row,) = (
            dict(zip(header, line, strict=True)) for line in lines if line[:2] == [what, size]
        )
        rows.append([f"{what}, {size}", *(short(row[f"{peer}, {unit}"], unit) for peer in PEERS)])
    return f"{page.table(['', *PEERS], rows)}\n\n{costs(link)}"


def costs(link: str) -> str:
    header, *lines = cells("first table", "benchmarks.md")
    of_func = {line[0]: line[header.index("torchlayers / torch.func")] for line in lines}
    ratios = [of_func[f"{name}, 50 multiplications"] for name in OPERATORS]
    grad, jvp, vmap = ratios
    workloads, benchmarks = f"{link}workloads.md", f"{link}benchmarks.md"
    return (
        f"CPU, one thread; from [whole workloads]({workloads}), where the results of all peers\n"
        "are compared before they are timed. On tensors of four numbers, an operator under\n"
        f"`grad`, `jvp` and `vmap` takes {grad}, {jvp} and {vmap} of torch.func's time\n"
        f"([benchmarks]({benchmarks}))."
    )


def cells(name: str, source: str) -> list[list[str]]:
    """The first table between the markers of that name, header first."""
    text = (page.DOCS / source).read_text(encoding="utf-8")
    text = text.partition(f"<!-- {name}: begin -->\n")[2]
    lines = text.partition("\n\n")[0].splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if i != 1
    ]


def short(cell: str, unit: str) -> str:
    """A time to three digits, without its spread; or why there is none."""
    number = re.match(r"[\d.,]+", cell)
    if number is None:
        return cell
    value = float(number.group().replace(",", ""))
    digits = float(f"{value:.3g}")
    return f"{digits:,.{0 if digits >= 100 or digits == int(digits) else 1}f} {unit}"


def main() -> None:
    for name in PAGES:
        link = "docs/" if "README" in name else ""
        page.write(name, NAME, block(link))


if __name__ == "__main__":
    main()
