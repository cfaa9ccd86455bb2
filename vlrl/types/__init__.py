"""The nouns of vlrl: what flows from a dataset row to an optimizer step. No torch is imported here.

Row -> Prompt -> Rollout (in a Group) -> TokenBatch -> LossInputs -> UnreducedLoss
"""

from vlrl.types.batches import (
    Denominators as Denominators,
)
from vlrl.types.batches import (
    LossInputs as LossInputs,
)
from vlrl.types.batches import (
    TokenBatch as TokenBatch,
)
from vlrl.types.batches import (
    UnreducedLoss as UnreducedLoss,
)
from vlrl.types.media import (
    TARGET_UNITS as TARGET_UNITS,
)
from vlrl.types.media import (
    Clip as Clip,
)
from vlrl.types.media import (
    CoordinateSpace as CoordinateSpace,
)
from vlrl.types.media import (
    Edited as Edited,
)
from vlrl.types.media import (
    Media as Media,
)
from vlrl.types.media import (
    MediaError as MediaError,
)
from vlrl.types.media import (
    MediaKind as MediaKind,
)
from vlrl.types.media import (
    Sound as Sound,
)
from vlrl.types.rollouts import (
    Completion as Completion,
)
from vlrl.types.rollouts import (
    FilterDecision as FilterDecision,
)
from vlrl.types.rollouts import (
    Group as Group,
)
from vlrl.types.rollouts import (
    Prompt as Prompt,
)
from vlrl.types.rollouts import (
    Request as Request,
)
from vlrl.types.rollouts import (
    Rollout as Rollout,
)
from vlrl.types.rollouts import (
    Sampling as Sampling,
)
from vlrl.types.rows import (
    Message as Message,
)
from vlrl.types.rows import (
    Row as Row,
)
from vlrl.types.rows import (
    RowError as RowError,
)
from vlrl.types.rows import (
    RowView as RowView,
)
