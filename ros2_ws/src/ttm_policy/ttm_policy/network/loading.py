"""Loads what a policy node runs, and checks that its parts fit together."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ttm.policy.checks import require_instruction
from ttm.policy.run.runner import PolicyRunner
from ttm.sim.shipped import default_checkpoint
from ttm_policy.contract.command_codec import CommandCodec
from ttm_policy.contract.contract_file import load_contract
from ttm_policy.contract.conversions import check_fields
from ttm_policy.contract.safety_limits import SafetyLimits
from ttm_policy.network.instructions import Instructions
from ttm_policy.parameters import PolicyParameters


@dataclass(frozen=True)
class LoadedPolicy:
    """A policy with the contract of its robot."""

    runner: PolicyRunner
    codec: CommandCodec
    limits: SafetyLimits
    instructions: Instructions


def load_policy(parameters: PolicyParameters, instructions: Instructions) -> LoadedPolicy:
    """Load contract and checkpoint, and compute the embedding of the instruction.

    This takes seconds. Call it in the thread that runs the ticks, since the number of threads of
    the network is set here. Every mistake in the files is found here and raised as `UserError`.
    """
    instruction = require_instruction(parameters.instruction, "instruction")
    checkpoint = parameters.checkpoint or str(default_checkpoint())
    torch.set_num_threads(parameters.threads)
    contract = load_contract(parameters.contract)
    check_fields(contract)
    runner = PolicyRunner.from_checkpoint(
        checkpoint,
        device=parameters.device,
        engine=parameters.engine,
        precision=parameters.precision,
        execution=parameters.execution,
    )
    contract.check(runner.spec)
    ticks = 1.0 if parameters.lockstep else parameters.lifespan_ticks
    lasts_s = ticks * runner.spec.control_dt_s
    limits = SafetyLimits(contract, runner.spec, parameters.limits, lasts_s=lasts_s)
    if instruction:
        instructions.reset(runner, instruction)
    codec = CommandCodec(contract, runner.spec, cmd_vel_stamped=parameters.cmd_vel_stamped)
    return LoadedPolicy(runner, codec, limits, instructions)
