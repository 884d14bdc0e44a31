"""Which images shape a small network, and how?

A convolutional network learns scikit-learn's handwritten digits. Then two questions are asked
about every image:

- How hard does it pull at the parameters? This is the norm of its own gradient. One vmap
  over one grad takes the gradients of all images at once.
- How does it, as a training image, change the loss on the test images? This is its
  influence ``-g_i . (H + damping I)^-1 g_test``, where g_i is its gradient, H the Hessian of
  the training loss and g_test the gradient of the test loss. H is never built: conjugate
  gradient needs only its products with vectors, and each of them is one jvp over one grad.

And one about a single image, the one that pulls hardest: how does the gradient of its loss change
if its pixels do? This is a product with the Hessian for 64 pixels. Its operators are so small that
most of the time goes to what surrounds them, which torchlayers makes cheaper; compiled, little of
it is left.

Plain autograd and torch.func compute the same. The run fails if they differ by more than
rounding; otherwise it prints the cost of each of the three, and saves a picture of the
images with the smallest and the largest values.

Source: Koh and Liang, "Understanding Black-box Predictions via Influence Functions" (2017).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import torch.func
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import torchlayers

OURS, LOOP, FUNC = "torchlayers", "autograd", "torch.func"
TOLERANCE = 1e-4  # relative; a float32 rounds by 6e-8, and conjugate gradient adds to that
TEST_IMAGES = 297
SHOWN = 8

Named = dict[str, Tensor]
Data = tuple[Tensor, Tensor]  # images and labels
Loss = Callable[[Named, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Settings:
    """How much work to do. The damping must outweigh the Hessian's negative eigenvalues."""

    train_images: int
    epochs: int
    damping: float
    repetitions: int
    repetitions_of_influence: int
    repetitions_of_one_image: int


FULL = Settings(
    train_images=1500,
    epochs=30,
    damping=0.01,
    repetitions=5,
    repetitions_of_influence=1,  # of seconds
    repetitions_of_one_image=200,
)
QUICK = Settings(
    train_images=300,
    epochs=20,
    damping=0.1,
    repetitions=1,
    repetitions_of_influence=1,
    repetitions_of_one_image=5,
)


@dataclass(frozen=True)
class Way:
    """One way to differentiate the loss."""

    per_sample_gradients: Callable[[Tensor, Tensor], Named]
    hessian_vector_product: Callable[[Named], Named]
    product_at_image: Callable[[Tensor, Tensor, Tensor], Named]  # image, label and direction


@dataclass(frozen=True)
class Row:
    """One quantity computed by torchlayers, the differences of the other ways, and the seconds."""

    quantity: str
    result: Named
    differences: dict[str, float]
    seconds: dict[str, float]


def main() -> None:
    """Trains, measures, prints, draws; ends with an error if the three ways disagree."""
    options = parse()
    settings = QUICK if options.quick else FULL
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the images are too small for several threads

    train, test = load(settings.train_images)
    everything = (torch.cat([train[0], test[0]]), torch.cat([train[1], test[1]]))
    model = network()
    fit(model, train, settings.epochs)
    print(f"Accuracy: training {accuracy(model, train):.3f}, test {accuracy(model, test):.3f}.")

    rows = measure_all(ways(model, train), everything, train, test, settings)
    print_table(rows)
    gradients, _, influences, *_ = (row.result for row in rows)
    check(rows)
    path = options.output / "digits.png"
    norms = flat(gradients, start_dim=1).norm(dim=1)
    save_picture(path, everything, predict(model, everything[0]), norms, influences["influence"])
    print(f"\nNo difference above {TOLERANCE:.0e}. Picture: {path}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Which images shape a small network, and how?")
    parser.add_argument("--quick", action="store_true", help="do less work")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path(__file__).parent / "output",
        help="the folder for the picture",
    )
    return parser.parse_args()


# A bar that is gone when it is full, and that a log does not get.
progress = partial(tqdm, leave=False, disable=None)


def load(train_images: int) -> tuple[Data, Data]:
    """Images to train with, and the last ones to test with, as grey values in [0, 1]."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    train, test = slice(train_images), slice(-TEST_IMAGES, None)
    return (images[train], labels[train]), (images[test], labels[test])


def network() -> nn.Module:
    """Two convolutions and a linear layer. Tanh is smooth, as a Hessian requires."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def fit(model: nn.Module, train: Data, epochs: int, batch_size: int = 64) -> None:
    """Trains the model with Adam, weight decay and one cycle of the learning rate."""
    images, labels = train
    steps = epochs * -(-len(images) // batch_size)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    for _ in progress(range(epochs), "training"):
        for batch in torch.randperm(len(images)).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()


def predict(model: nn.Module, images: Tensor) -> Tensor:
    """The digit that the model sees in each image."""
    with torch.no_grad():
        return model(images).argmax(dim=1)


def accuracy(model: nn.Module, data: Data) -> float:
    """The share of images whose digit the model recognizes."""
    images, labels = data
    return (predict(model, images) == labels).float().mean().item()


def ways(model: nn.Module, train: Data) -> dict[str, Way]:
    """The three ways to differentiate the model's loss at its parameters."""
    params = {name: param.detach() for name, param in model.named_parameters()}

    def loss(params: Named, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(torchlayers.functional_call(model, params, (images,)), labels)

    return {
        OURS: by_transforms(torchlayers, loss, params, train),
        LOOP: by_autograd(loss, params, train),
        FUNC: by_transforms(torch.func, loss, params, train),
    }


def by_transforms(library: ModuleType, loss: Loss, params: Named, train: Data) -> Way:
    """With the transforms of torchlayers or of torch.func: the code is the same."""

    def sample_loss(params: Named, image: Tensor, label: Tensor) -> Tensor:
        return loss(params, image.unsqueeze(0), label.unsqueeze(0))

    def train_loss(params: Named) -> Tensor:
        return loss(params, *train)

    def per_sample_gradients(images: Tensor, labels: Tensor) -> Named:
        gradient = library.grad(sample_loss)
        return library.vmap(gradient, in_dims=(None, 0, 0))(params, images, labels)

    def hessian_vector_product(vector: Named) -> Named:
        return library.jvp(library.grad(train_loss), (params,), (vector,))[1]

    def product_at_image(image: Tensor, label: Tensor, direction: Tensor) -> Named:
        gradient = library.grad(partial(sample_loss, params))
        return {"product": library.jvp(lambda x: gradient(x, label), (image,), (direction,))[1]}

    return Way(per_sample_gradients, hessian_vector_product, product_at_image)


def by_autograd(loss: Loss, params: Named, train: Data) -> Way:
    """With plain autograd: a loop over the images, and double backward."""
    params = {name: param.clone().requires_grad_() for name, param in params.items()}
    leaves = list(params.values())

    def per_sample_gradients(images: Tensor, labels: Tensor) -> Named:
        samples = zip(images.split(1), labels.split(1), strict=True)
        gradients = [torch.autograd.grad(loss(params, *sample), leaves) for sample in samples]
        return {
            name: torch.stack(of_samples)
            for name, of_samples in zip(params, zip(*gradients, strict=True), strict=True)
        }

    def hessian_vector_product(vector: Named) -> Named:
        gradients = torch.autograd.grad(loss(params, *train), leaves, create_graph=True)
        products = torch.autograd.grad(gradients, leaves, list(vector.values()))
        return dict(zip(params, products, strict=True))

    def product_at_image(image: Tensor, label: Tensor, direction: Tensor) -> Named:
        image = image.clone().requires_grad_()
        value = loss(params, image.unsqueeze(0), label.unsqueeze(0))
        (gradient,) = torch.autograd.grad(value, image, create_graph=True)
        return {"product": torch.autograd.grad(gradient, image, direction)[0]}

    return Way(per_sample_gradients, hessian_vector_product, product_at_image)


def influence(way: Way, train: Data, test: Data, damping: float) -> Named:
    """The effect of each training image's weight on the test loss: positive ones raise it."""
    gradients = way.per_sample_gradients(*train)
    test_gradient = {
        name: gradient.mean(dim=0) for name, gradient in way.per_sample_gradients(*test).items()
    }

    def damped_hessian(vector: Tensor) -> Tensor:
        product = way.hessian_vector_product(unflat(vector, test_gradient))
        return flat(product) + damping * vector

    solution = conjugate_gradient(damped_hessian, flat(test_gradient))
    return {"influence": -flat(gradients, start_dim=1) @ solution}


def conjugate_gradient(
    matrix: Callable[[Tensor], Tensor], target: Tensor, tolerance: float = 1e-5, limit: int = 500
) -> Tensor:
    """Solves ``matrix(x) = target`` for a symmetric positive definite matrix.

    Source: Hestenes and Stiefel, "Methods of Conjugate Gradients for Solving Linear Systems"
        (1952).
    """
    solution, residual, direction = torch.zeros_like(target), target, target
    size = residual @ residual
    goal = tolerance**2 * size
    for _ in progress(range(limit), "conjugate gradient"):
        product = matrix(direction)
        curvature = direction @ product
        if not curvature > 0:
            raise SystemExit("The damped Hessian is not positive definite: it needs more damping.")
        solution = solution + size / curvature * direction
        residual = residual - size / curvature * product
        size, previous = residual @ residual, size
        if size <= goal:
            return solution
        direction = residual + size / previous * direction
    raise SystemExit(f"Conjugate gradient did not converge in {limit} iterations.")


def flat(named: Named, start_dim: int = 0) -> Tensor:
    """The tensors as one, side by side."""
    return torch.cat([tensor.flatten(start_dim) for tensor in named.values()], dim=start_dim)


def unflat(vector: Tensor, like: Named) -> Named:
    """The vector split into tensors with the names and shapes of ``like``."""
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {
        name: part.view_as(tensor) for (name, tensor), part in zip(like.items(), parts, strict=True)
    }


def measure_all(
    by_name: dict[str, Way], everything: Data, train: Data, test: Data, settings: Settings
) -> list[Row]:
    """The quantities, each computed in every way; the last one compiled as well."""

    def works(compute: Callable[[Way], Named]) -> dict[str, Callable[[], Named]]:
        return {name: partial(compute, way) for name, way in by_name.items()}

    gradients = measure(
        f"Gradients of {len(everything[0])} images",
        works(lambda way: way.per_sample_gradients(*everything)),
        settings.repetitions,
    )
    vector = {name: torch.randn_like(sample[0]) for name, sample in gradients.result.items()}
    products = measure(
        "Hessian-vector product",
        works(lambda way: way.hessian_vector_product(vector)),
        settings.repetitions,
    )
    influences = measure(
        f"Influence of {len(train[0])} images",
        works(lambda way: influence(way, train, test, settings.damping)),
        settings.repetitions_of_influence,
    )
    hardest = flat(gradients.result, start_dim=1).norm(dim=1).argmax()
    image, label = (values[hardest] for values in everything)
    given = image, label, torch.ones_like(image)
    at_image = works(lambda way: way.product_at_image(*given))
    compiled = torchlayers.compile(by_name[OURS].product_at_image, wait=True)
    times = settings.repetitions_of_one_image
    at_one_image = [
        measure("Product at one image", at_image, times),
        measure("the same, compiled", at_image | {OURS: partial(compiled, *given)}, times),
    ]
    return [gradients, products, influences, *at_one_image]


def measure(quantity: str, works: dict[str, Callable[[], Named]], repetitions: int) -> Row:
    """Runs each work once, to warm up and for its result, then several times for the median."""
    with progress(desc=quantity, total=len(works) * (1 + repetitions)) as steps:

        def timed(work: Callable[[], Named]) -> tuple[Named, float]:
            start = time.perf_counter()
            result = work()
            seconds = time.perf_counter() - start
            steps.update()
            return result, seconds

        results = {name: timed(work)[0] for name, work in works.items()}
        rounds = [
            {name: timed(work)[1] for name, work in works.items()} for _ in range(repetitions)
        ]
    return Row(
        quantity,
        results[OURS],
        {name: difference(results[OURS], results[name]) for name in (LOOP, FUNC)},
        {name: statistics.median(seconds[name] for seconds in rounds) for name in works},
    )


def difference(ours: Named, theirs: Named) -> float:
    """The largest difference, relative to the largest entry of the tensor it is in."""
    largest = [
        (ours[name] - other).abs().max() / other.abs().max()
        if ours[name].shape == other.shape
        else torch.tensor(torch.inf)
        for name, other in theirs.items()
    ]
    return torch.stack(largest).max().item()  # nan stays nan


def check(rows: list[Row]) -> None:
    """Ends the run with an error if a difference is more than rounding."""
    wrong = [
        f"{row.quantity}: torchlayers differs from {name} by {found:.1e}"
        for row in rows
        for name, found in row.differences.items()
        if not found <= TOLERANCE  # so that nan fails too
    ]
    if wrong:
        raise SystemExit("\n".join([f"Wrong: more than {TOLERANCE:.0e} apart.", *wrong]))


def print_table(rows: list[Row]) -> None:
    """One line per quantity: differences, times, and the others' times over torchlayers'."""
    peers = (LOOP, FUNC)
    print(f"\n{'':24}{'difference from':>24}{'time':>36}{'time / torchlayers':>24}")
    print(f"{'':24}" + "".join(f"{name:>12}" for name in (*peers, OURS, *peers, *peers)))
    for row in rows:
        cells = [f"{row.differences[name]:.1e}" for name in peers]
        cells += [duration(row.seconds[name]) for name in (OURS, *peers)]
        cells += [f"{row.seconds[name] / row.seconds[OURS]:.1f}" for name in peers]
        print(f"{row.quantity:24}" + "".join(f"{cell:>12}" for cell in cells))


def duration(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{1000 * seconds:.3f} ms"


def save_picture(
    path: Path, data: Data, predictions: Tensor, norms: Tensor, influences: Tensor
) -> None:
    """Four rows: the largest and smallest gradients, the most helpful and harmful images."""
    norm_titles = [f"norm {norm:#.3g}" for norm in norms.tolist()]
    influence_titles = [f"influence {value:+.2f}" for value in influences.tolist()]
    rows = {
        "Largest gradients": (norms.argsort(descending=True), norm_titles),
        "Smallest gradients": (norms.argsort(), norm_titles),
        "Most helpful for the test images": (influences.argsort(), influence_titles),
        "Most harmful": (influences.argsort(descending=True), influence_titles),
    }
    figure = Figure(figsize=(1.5 * SHOWN, 2.3 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    subfigures = figure.subfigures(len(rows))
    for subfigure, (heading, (order, titles)) in zip(subfigures, rows.items(), strict=True):
        subfigure.suptitle(heading, x=0.01, horizontalalignment="left", weight="bold")
        draw_row(subfigure, order[:SHOWN].tolist(), data, predictions, titles)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_row(
    subfigure: SubFigure, chosen: list[int], data: Data, predictions: Tensor, titles: list[str]
) -> None:
    """The chosen images, each with its label and the prediction: in red where that is wrong."""
    images, labels = data
    for axes, i in zip(subfigure.subplots(1, len(chosen)), chosen, strict=True):
        axes.imshow(images[i, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("lightgray")
        label, prediction = labels[i].item(), predictions[i].item()
        axes.set_title(
            f"label {label}, seen as {prediction}\n{titles[i]}",
            fontsize=9,
            color="black" if label == prediction else "firebrick",
        )


if __name__ == "__main__":
    main()
