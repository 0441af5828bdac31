# SPDX-License-Identifier: Apache-2.0
"""The training run: two phases by the clock, AdamW or Muon, aux-free expert balancing.

Phase one: short rows, bfloat16. Phase two: long rows, and every quantised tensor through E4M3. The
learning rate follows the share of the time that is used, so a run has a length in seconds.
"""

import json
import math
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from .data import Batches
from .model import TinyGlm

MTP_WEIGHT = 0.2
PHASES = [  # share of the time, rows, tokens a row, quantised, long documents
    (0.60, 64, 1024, False, False),
    (0.40, 16, 4096, True, True),
]
TRIAL_PHASES = [(0.60, 2, 256, False, False), (0.40, 1, 512, True, True)]  # fits a small CPU


@torch.no_grad()
def orthogonal(g, steps=5):
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrix; batched over leading dims."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.mT if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if flip else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised, for matrices and stacks of matrices."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            alike = {}
            for p in group["params"]:
                alike.setdefault(tuple(p.shape), []).append(p)
            for shape, params in alike.items():
                grads = torch.stack([p.grad for p in params])
                state = self.state[params[0]]
                if not state:
                    state["m"] = torch.zeros_like(grads)
                m = state["m"].mul_(group["momentum"]).add_(grads)
                update = orthogonal(grads.add_(m, alpha=group["momentum"]))
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                rate = group["lr"] * max(1.0, shape[-2] / shape[-1]) ** 0.5
                torch._foreach_add_(params, list(update.unbind(0)), alpha=-rate)


def optimizers(model, kind, lr):
    matrices, tables, vectors = [], [], []
    for name, p in model.named_parameters():
        if p.ndim == 1:
            vectors.append(p)
        elif name in ("embed", "head") or name.endswith("router"):
            tables.append(p)
        else:
            matrices.append(p)
    fused = p.is_cuda
    if kind == "adamw":
        groups = [
            {"params": matrices, "lr": lr, "weight_decay": 0.05},
            {"params": tables, "lr": lr, "weight_decay": 0.01},
            {"params": vectors, "lr": lr, "weight_decay": 0.0},
        ]
        return [torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=fused)]
    groups = [
        {"params": tables, "lr": lr * 0.2, "weight_decay": 0.01},
        {"params": vectors, "lr": lr * 0.2, "weight_decay": 0.0},
    ]
    return [Muon(matrices, lr), torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=fused)]


def losses(model, tokens, weights):
    """Weighted next-token loss, MTP loss, and the load of every expert."""
    states, loads = model.hidden(tokens)
    following = tokens.roll(-1, 1)
    drafts, load = model.draft(states, following)

    def entropy(logits, shift):
        goal, w = tokens[:, shift:], weights[:, shift:]
        loss = F.cross_entropy(logits[:, :-shift].float().flatten(0, 1), goal.flatten(), reduction="none")
        return (loss * w.flatten()).sum() / w.sum()

    return entropy(model.logits(states), 1), entropy(drafts, 2), torch.stack(loads + [load])


def balance(model, loads, rate):
    for layer, load in zip(model.moe_layers(), loads):
        layer.bias += rate * torch.sign(load.mean() - load)
        layer.bias -= layer.bias.mean()


def batches(tokenizer, rows, length, long, seed, workers, device):
    data = Batches(tokenizer, rows, length, seed, long)
    return iter(
        DataLoader(
            data,
            batch_size=None,
            num_workers=workers,
            pin_memory=device == "cuda",
            prefetch_factor=4 if workers else None,
        )
    )


def forward(run, model, tokens, weights):
    """(result, the function that gave it): a compiler that refuses must not end a paid run."""
    try:
        return run(model, tokens, weights), run
    except Exception as error:
        if run is losses:
            raise
        print(f"compilation failed, running eagerly: {error!r:.400}", flush=True)
        return losses(model, tokens, weights), losses


def set_rates(steppers, base, factor):
    for stepper, rates in zip(steppers, base):
        for group, rate in zip(stepper.param_groups, rates):
            group["lr"] = rate * factor


def update(model, steppers, loss):
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper in steppers:
        stepper.step()
        stepper.zero_grad(set_to_none=True)


def train(
    tokenizer,
    out,
    seconds,
    device="cuda",
    seed=1,
    optimizer="muon",
    lr=0.02,
    workers=14,
    max_steps=None,
    phases=None,
    config=None,
    log_every=100,
):
    """Trains for so many seconds (or `max_steps` in each phase) and saves to `out` after each phase."""
    phases = phases or (PHASES if device == "cuda" else TRIAL_PHASES)
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    model = TinyGlm(config, dtype=torch.bfloat16).to(device)
    steppers = optimizers(model, optimizer, lr)
    base = [[g["lr"] for g in s.param_groups] for s in steppers]
    step, used, seen, edge, log, began = 0, 0.0, 0, 0.0, [], time.time()
    for phase, (share, rows, length, quant, long) in enumerate(phases):
        edge += share
        source = batches(tokenizer, rows, length, long, seed * 10 + phase, workers, device)
        model.quant = quant
        run = torch.compile(losses, dynamic=False) if device == "cuda" else losses
        first = step
        while used < edge * seconds - 1e-6 and (max_steps is None or step - first < max_steps):
            start = time.time()
            cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, used / seconds)))
            factor = min(1.0, (step + 1) / 100) * max(0.01, cosine)
            set_rates(steppers, base, factor)
            tokens, weights = (t.to(device, non_blocking=True) for t in next(source))
            (main, draft, loads), run = forward(run, model, tokens, weights)
            update(model, steppers, main + MTP_WEIGHT * draft)
            balance(model, loads.detach(), 0.002 * max(factor, 0.05))
            step, seen = step + 1, seen + tokens.numel()
            if step % log_every == 0 or step - first <= 3 or device != "cuda":
                spread = (loads.max(1).values / loads.mean(1)).max().item()
                log.append(
                    dict(
                        step=step,
                        phase=phase,
                        loss=round(main.item(), 4),
                        draft=round(draft.item(), 4),
                        spread=round(spread, 2),
                        lr=round(factor, 3),
                        used=round(used, 1),
                        wall=round(time.time() - began, 1),
                        tokens=seen,
                    )
                )
                print(json.dumps(log[-1]), flush=True)
            if step % 20 == 0 and device == "cuda":
                torch.cuda.synchronize()  # else the clock would stop before the work has ended
            if step - first > 3:  # compilation does not count
                used += time.time() - start
        used = max(used, edge * seconds) if max_steps is not None else used
        torch.save(
            {
                "model": model.state_dict(),
                "config": model.config,
                "log": log,
                "steps": step,
                "tokens": seen,
                "seconds": round(used, 1),
                "wall": round(time.time() - began, 1),
                "seed": seed,
                "optimizer": optimizer,
                "lr": lr,
            },
            out,
        )
    return model


def load(path, device="cpu"):
    saved = torch.load(path, map_location=device, weights_only=True)
    model = TinyGlm(saved["config"]).to(device)
    model.load_state_dict(saved["model"])
    return model, saved
