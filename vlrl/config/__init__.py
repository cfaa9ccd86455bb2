"""Configs: YAML files and overrides, merged into one tree per phase, checked, with the origin of each
value."""

from vlrl.config.config import (
    MAP_SLOTS as MAP_SLOTS,
)
from vlrl.config.config import (
    OTHER_KEYS as OTHER_KEYS,
)
from vlrl.config.config import (
    SLOTS as SLOTS,
)
from vlrl.config.config import (
    Config as Config,
)
from vlrl.config.config import (
    at as at,
)
from vlrl.config.config import (
    find as find,
)
from vlrl.config.config import (
    first_origin as first_origin,
)
from vlrl.config.config import (
    folders as folders,
)
from vlrl.config.config import (
    leaves as leaves,
)
from vlrl.config.config import (
    load as load,
)
from vlrl.config.config import (
    own_tree as own_tree,
)
