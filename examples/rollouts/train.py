"""Trains the toy model by GRPO, with Claude Code, unmodified, as the agent.

    python examples/rollouts/train.py MODEL WEIGHTS http://127.0.0.1:8000 claude

MODEL: the model's folder; WEIGHTS: the server's `--weights-dir`; then its address, and the agent.
"""

import asyncio
import itertools
import json
import random
import sys
import tempfile
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import aiohttp
import torch
import toy
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

AGENTS, GROUPS, ROLLOUTS = 6, 6, 6
"""Agents at once; groups in a training step, each of one question; rollouts in a group."""
LEARNING_RATE, EPOCHS, LOW, HIGH, GOAL = 1e-4, 8, 0.2, 0.3, 0.9
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 32}
QUIET = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "ANTHROPIC_AUTH_TOKEN": "any"}
NO_OUTPUT: Any = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.DEVNULL)


class Agents:
    """Runs agents, each in a rollout, and returns their samples."""

    def __init__(self, http: aiohttp.ClientSession, program: str) -> None:
        self.http, self.program, self.running = http, program, 0
        self.slots = asyncio.Semaphore(AGENTS)

    async def call(self, method: str, path: str, body: Any = None) -> list[dict[str, Any]]:
        """Sends a request; returns the lines of its answer."""
        async with self.http.request(method, path, json=body) as response:
            return [json.loads(line) for line in (await response.read()).splitlines()]

    async def _run_agent(self, url: str, question: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            toy.write_files(Path(folder))
            options = ["-p", question, "--tools", ",".join(toy.CALLS)]
            own: Any = {"cwd": folder, "env": QUIET | {"HOME": folder, "ANTHROPIC_BASE_URL": url}}
            agent = await asyncio.create_subprocess_exec(self.program, *options, **own, **NO_OUTPUT)
            self.running += 1
            await agent.wait()
            self.running -= 1

    async def rollout(self, group: str, question: str, tool: str) -> dict[str, Any]:
        """Runs one agent. Its reward is 1 for one call, of the right tool."""
        async with self.slots:
            body = {"sampling": SAMPLING, "limits": {"turns": 4}, "group": group}
            (made,) = await self.call("POST", "/rollouts", body)
            await self._run_agent(made["base_urls"]["anthropic"], question)
        path = f"/rollouts/{made['id']}"
        await self.call("POST", f"{path}/finish")
        *samples, _ = await self.call("GET", f"{path}/samples")  # the last line is the rollout's
        blocks = [block for one in samples for turn in one["turns"] for block in turn["blocks"]]
        calls = [each["name"] for each in blocks if "name" in each and each["end"] > each["start"]]
        reward = float(calls == [tool])
        await self.call("PUT", f"{path}/reward", {"reward": reward})
        return {"reward": reward, "samples": samples}

    async def group(self, number: int) -> list[dict[str, Any]]:
        """Runs several agents for one question, and compares their rewards."""
        task = f"question-{number}", *toy.ask(random.Random(number), number)
        group = await asyncio.gather(*(self.rollout(*task) for _ in range(ROLLOUTS)))
        rewards = [rollout["reward"] for rollout in group]
        for rollout in group:
            advantage = (rollout["reward"] - mean(rewards)) / (pstdev(rewards) + 0.01)
            share = {"advantage": advantage / max(len(rollout["samples"]), 1)}
            rollout["samples"] = [each | share for each in rollout["samples"]]
        return group


def improve(model: Any, optimizer: torch.optim.Optimizer, samples: list[dict[str, Any]]) -> None:
    """Trains the model by GRPO, with the log probabilities that the engine has recorded."""
    own = pad([sample["loss_mask"][1:] for sample in samples])
    old = pad([[value or 0.0 for value in sample["logprobs"][1:]] for sample in samples])
    advantages = torch.tensor([[sample["advantage"]] for sample in samples])
    for _ in range(EPOCHS):
        ratios = (logprobs(model, samples) - old).exp()
        gains = torch.minimum(ratios * advantages, ratios.clamp(1 - LOW, 1 + HIGH) * advantages)
        torch.autograd.backward(-(gains * own).sum() / len(samples))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def difference(model: Any, weights: Path, sample: dict[str, Any]) -> float:
    """Compares the log probability of each token with what the weights of its version give."""
    worst = 0.0
    for span in sample["weights"]:
        tensors = load_file(weights / str(span["version"]) / "model.safetensors")
        model.load_state_dict(tensors, strict=False)  # tied embeddings are there once
        again = logprobs(model, [sample])[0]
        for at in range(span["start"], span["end"]):
            worst = max(worst, abs(again[at - 1].item() - sample["logprobs"][at]))
    return worst


def logprobs(model: Any, samples: list[dict[str, Any]]) -> torch.Tensor:
    """Returns the log probability of each id but the first, in a row for each sample."""
    ids = pad([sample["ids"] for sample in samples])
    scores: torch.Tensor = model(ids[:, :-1]).logits.log_softmax(dim=-1)
    return scores.gather(-1, ids[:, 1:, None])[..., 0]


def pad(rows: list[list[Any]]) -> torch.Tensor:
    """Returns the rows, with zeros at their ends."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


async def main(folder: str, weights: str, url: str, program: str) -> None:
    """Trains until the mean reward of three steps is greater than the goal."""
    model, other = (AutoModelForCausalLM.from_pretrained(folder) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    model.save_pretrained(Path(weights, "0"))
    async with aiohttp.ClientSession(url, raise_for_status=True) as http:
        agents, groups, rewards = Agents(http, program), itertools.count(), list[float]()
        running = {asyncio.create_task(agents.group(next(groups)))}
        for version in itertools.count(1):
            rollouts: list[dict[str, Any]] = []
            while len(rollouts) < GROUPS * ROLLOUTS:
                done, running = await asyncio.wait(running, return_when="FIRST_COMPLETED")
                rollouts += itertools.chain(*(task.result() for task in done))
                while len(running) < GROUPS:  # they run while the model is trained
                    running.add(asyncio.create_task(agents.group(next(groups))))
            samples = list(itertools.chain(*(rollout["samples"] for rollout in rollouts)))
            worst = max(difference(other, Path(weights), sample) for sample in samples)
            await asyncio.to_thread(improve, model, optimizer, samples)
            rewards.append(mean(rollout["reward"] for rollout in rollouts))
            news = f"reward {rewards[-1]:.2f}, {len(rollouts)} rollouts, {len(samples)} samples"
            print(f"{news}, error {worst:.0e}, {agents.running} agents meanwhile", flush=True)
            model.save_pretrained(Path(weights, str(version)))
            body = {"model": Path(folder).name, "source": str(version), "version": version}
            await agents.call("POST", "/engines/weights", body)
            if mean(rewards[-3:]) > GOAL:
                break
        await asyncio.gather(*running)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
