"""E005: Substreams packages: modules, types, annotations, and databases of the SQL sink."""

from headwater.errors.base import ConfigError


class PackageError(
    ConfigError,
    code="E0051",
    fix="give a .spkg file (also .spkg.zst), its https address or its bytes, built by `substreams "
    "pack`, with the .proto files of the output type among its protobuf files",
):
    """A Substreams package cannot be read, or lacks what is needed of it."""


class ModuleChoiceError(
    ConfigError,
    code="E0052",
    fix="name one of the package's map modules that the message lists",
):
    """The package has no such module, or it does not say which one is for a sink."""


class RelationalSchemaError(
    ConfigError,
    code="E0053",
    fix="correct the `schema` annotations of the message that the error names, or give the module "
    "other annotations with --proto-file-override; nothing was created",
):
    """The annotations of a message contradict each other, or the target cannot keep them."""


class SinkCursorError(
    ConfigError,
    code="E0054",
    fix="give a cursor as the endpoint or the sink's `cursors` table has it: about 200 characters "
    "of URL-safe base64",
):
    """A text is no cursor of a Substreams endpoint."""


class SinkDsnError(
    ConfigError,
    code="E0055",
    fix="give psql://user:password@host:5432/name?schemaName=public, clickhouse://…, or the path "
    "of a DuckDB file; ${NAME} stands for a variable of the environment",
):
    """The address of a sink's database cannot be understood."""


class TakeoverError(
    ConfigError,
    code="E0056",
    fix="nothing was changed: use the package, the parameters and the network of the sink that "
    "filled the tables, or say --on-module-hash-mismatch warn to go on from its cursor anyway",
):
    """The database holds the cursor of another module of the SQL sink."""
