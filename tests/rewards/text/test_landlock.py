"""The attacks on the sandbox where bubblewrap is missing: Landlock and a filter of system calls in its place."""

import os
import platform
import struct
import subprocess
import sys
import time

import pytest
from test_forged_results import *  # noqa: F403
from test_sandbox_attacks import (
    ATTACKS,
    RIGHT,
    judge,
    test_bombs_leave_nothing,
    test_memory_is_bounded_in_total,
    test_refused_system_calls,
)
from vlrl_rewards.code import isolation
from vlrl_rewards.code.sandbox import SandboxLimits, run
