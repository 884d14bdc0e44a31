"""Ensembles: many small networks trained as one.

An ensemble's members have the same layers and different parameters. ``stack_module_state``
stacks the parameters, and vmap over the stack turns a training step of one member into a step
of all. Dropout draws random numbers; vmap's randomness decides whether all members draw the same
ones ("same") or each different ones ("different").

Twenty networks learn scikit-learn's wines (178 wines of three cultivars, 13 measurements each)
from 35 wines, and are tested on the rest, for five choices of the 35. These figures are reproduced:

- Trained as one with randomness="same", the members' parameters are those of a loop that
  trains each separately from the same random state: they differ by 0 (within 1e-12, float64).
- The ensemble's Brier score is the members' mean minus their ambiguity, the variance of their
  predictions (Krogh and Vedelsby): the remainder is 0 (within 1e-12).
- The ensemble's negative log-likelihood is 0.65 of its members' mean (within 0.15): averaging
  makes predictions less overconfident (Lakshminarayanan et al., figure 2).
- The ensemble's accuracy is 0.01 above its members' mean (within 0.008).

Source: Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty
    Estimation using Deep Ensembles" (2017); Krogh and Vedelsby, "Neural Network Ensembles,
    Cross Validation, and Active Learning" (1995).
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from examples.figures import check
from torchlayers import functional_call, grad, stack_module_state, vmap

Parameters = dict[str, Tensor]
Data = tuple[Tensor, Tensor]  # measurements, cultivars

MEMBERS = 20
HIDDEN = 8
DROPOUT = 0.2
STEPS = 300
STEP_SIZE = 0.1
TRAINING_WINES = 35
SPLITS = 5

# Name of the figure: (expected value, tolerance).
EXPECTED = {
    "parameters from training one by one": (0.0, 1e-12),
    "Brier score less what ambiguity explains": (0.0, 1e-12),
    "negative log-likelihood over the members'": (0.65, 0.15),
    "accuracy above the members'": (0.01, 0.008),
}


def load(split: int) -> tuple[Data, Data]:
    """The training wines and the test wines; each training column has mean 0 and variance 1."""
    wine = load_wine()
    parts = train_test_split(
        torch.tensor(wine.data),
        torch.tensor(wine.target),
        train_size=TRAINING_WINES,
        stratify=wine.target,
        random_state=split,
    )
    x, test_x, y, test_y = parts
    mean, deviation = x.mean(0), x.std(0)
    return ((x - mean) / deviation, y), ((test_x - mean) / deviation, test_y)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(13, HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Dropout(DROPOUT),
        nn.Linear(HIDDEN, 3),
    ).to(torch.float64)


def step(params: Parameters, model: nn.Module, data: Data) -> Parameters:
    """One member's parameters after one step of gradient descent."""

    def loss(params: Parameters) -> Tensor:
        x, y = data
        return F.cross_entropy(functional_call(model, params, (x,)), y)

    gradients = grad(loss)(params)
    return {name: param - STEP_SIZE * gradients[name] for name, param in params.items()}


def train_together(members: list[nn.Module], data: Data, randomness: str) -> Parameters:
    """The members' parameters, with the members as the first dimension."""
    params = stack_module_state(members)[0]
    params = {name: param.detach() for name, param in params.items()}
    step_of_all = vmap(step, in_dims=(0, None, None), randomness=randomness)
    torch.manual_seed(0)
    for _ in range(STEPS):
        params = step_of_all(params, members[0], data)
    return params


def train_singly(members: list[nn.Module], data: Data) -> Parameters:
    """The same by a loop over the members, each from the same random state."""
    trained = []
    for member in members:
        params = {name: param.detach() for name, param in member.named_parameters()}
        torch.manual_seed(0)
        for _ in range(STEPS):
            params = step(params, member, data)
        trained.append(params)
    return {name: torch.stack([params[name] for params in trained]) for name in trained[0]}


def probabilities(params: Parameters, model: nn.Module, x: Tensor) -> Tensor:
    """Members x wines x cultivars, without dropout."""
    model.eval()
    logits = vmap(functional_call, in_dims=(None, 0, None))(model, params, (x,))
    return logits.softmax(-1)


def brier(predicted: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance between the probabilities and the outcomes."""
    return (predicted - F.one_hot(y, 3)).square().sum(-1).mean()


def log_loss(predicted: Tensor, y: Tensor) -> Tensor:
    """Mean negative log-likelihood."""
    return -predicted[..., range(len(y)), y].log().mean()


def accuracy(predicted: Tensor, y: Tensor) -> Tensor:
    return (predicted.argmax(-1) == y).double().mean()


def difference_from_loop(members: list[nn.Module], data: Data) -> float:
    """The largest difference between parameters trained as one and trained one by one."""
    together, singly = train_together(members, data, "same"), train_singly(members, data)
    return max((together[name] - singly[name]).abs().max().item() for name in singly)


def scores(members: list[nn.Module], data: Data, test: Data) -> dict[str, Tensor]:
    """Each score of the ensemble, and as "members' ..." the mean of its members' scores."""
    x, y = test
    predicted = probabilities(train_together(members, data, "different"), members[0], x)
    mean = predicted.mean(0)
    found = {"ambiguity": (predicted - mean).square().sum(-1).mean()}
    for score in (accuracy, log_loss, brier):
        found[score.__name__] = score(mean, y)
        found["members' " + score.__name__] = score(predicted, y)
    return found


def main() -> dict[str, float]:
    torch.set_num_threads(1)  # the tensors are small
    torch.manual_seed(0)
    splits = []
    for split in range(SPLITS):
        data, test = load(split)
        splits.append(scores([network() for _ in range(MEMBERS)], data, test))
    mean = {name: torch.stack([found[name] for found in splits]).mean() for name in splits[0]}
    print(", ".join(f"{name} {value:.4f}" for name, value in mean.items()))

    explained = mean["members' brier"] - mean["ambiguity"]
    gain = mean["accuracy"] - mean["members' accuracy"]
    figures = {
        "parameters from training one by one": difference_from_loop(
            [network() for _ in range(MEMBERS)], load(0)[0]
        ),
        "Brier score less what ambiguity explains": (mean["brier"] - explained).item(),
        "negative log-likelihood over the members'": (
            mean["log_loss"] / mean["members' log_loss"]
        ).item(),
        "accuracy above the members'": gain.item(),
    }
    check(figures, EXPECTED)
    return figures


if __name__ == "__main__":
    main()
