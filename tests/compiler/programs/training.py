"""Training steps, which backward() and an optimizer make."""

import types

import torch
from torch import nn


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def clipped_step():
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    log = types.SimpleNamespace(losses=[], norms=[], skipped=0)
    average = make_net()

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        if not torch.isfinite(loss):
            log.skipped += 1
            return loss.detach()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), average.parameters(), strict=True):
                q.lerp_(p, 0.1)
        log.losses.append(loss.item())
        log.norms.append(norm.item())
        return loss.detach()

    return step, (log, net, average)


def scheduled_step():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step, (net, schedule.state_dict)


def plateau_step():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step(loss)
        return loss.detach()

    return step, (net, lambda: optimizer.param_groups[0]["lr"])


def accumulated_gradients():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    box = types.SimpleNamespace(step=0)

    def step(x):
        loss = net(x).square().mean() / 2
        loss.backward()
        box.step += 1
        if box.step % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, (net, box)


def scaled_step():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step, (net, scaler.state_dict)


def two_optimizers():
    one, other = make_net(), make_net()
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other)]

    def step(x):
        index = 0 if x.sum() > 0 else 1
        net, optimizer = (one, other)[index], optimizers[index]
        optimizer.zero_grad(set_to_none=False)
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, (one, other)


def gradient_noise_by_norm():
    net = make_net()

    def step(x):
        net.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        total = sum(p.grad.norm() ** 2 for p in net.parameters()) ** 0.5
        rate = 0.1 if total < 1 else 0.1 / total.item()
        with torch.no_grad():
            for p in net.parameters():
                p -= rate * p.grad
        return loss.detach()

    return step, net


def lbfgs_step():
    net = make_net()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def step(x):
        def closure():
            optimizer.zero_grad()
            loss = (net(x) - 1).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return step, net


TRAINING = [clipped_step, scheduled_step, plateau_step, accumulated_gradients, scaled_step]
TRAINING += [two_optimizers, gradient_noise_by_norm, lbfgs_step]
