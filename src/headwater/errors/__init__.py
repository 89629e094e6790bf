"""Every error Headwater raises on purpose: a code, what happened, with which values, what to do.

    HeadwaterError
    ├── ConfigError   E0…  configuration: raised before anything is read or changed
    ├── ForkError     E1…  the chain and the stored state cannot be reconciled
    ├── TargetError   E20… ClickHouse, E21… PostgreSQL, E23… Parquet, E25… DuckDB,
    │                 E26… lakes
    ├── PortalError   E3…  transport, status codes, malformed or contradictory answers
    │                 E31… Substreams endpoints and packages
    ├── DecodeError   E4…  signatures, layouts, contents of blocks
    ├── SparkError    E5…  Java, sessions, column types, the data source
    ├── ChangeError   E6…  operations on rows
    └── EffectError   E7…  messages and their delivery

The text starts with the code because text is all that survives a Spark worker. Errors pickle.
Numbers that the SQD Pipes SDK uses keep its meaning. `docs/errors.md` lists all of them; a test
keeps raised ⇔ documented ⇔ tested. A class is written down once, in the module of its kind.
"""

from headwater.errors.base import *
from headwater.errors.changes import *
from headwater.errors.configuration import *
from headwater.errors.databases import *
from headwater.errors.decoding import *
from headwater.errors.effects import *
from headwater.errors.forks import *
from headwater.errors.lake import *
from headwater.errors.portal import *
from headwater.errors.spark import *
