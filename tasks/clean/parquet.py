"""Parquet row by row: only the columns that are asked for, and some MiB of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.clean.raw import Raw
from tasks.clean.rows import REVISIONS, Fields, packed
from tasks.core.errors import ConfigError, InputError

_BATCH = 1 << 22
_MOST_ROWS = 4096
_BUFFER = 1 << 20


def rows(
    path: Path, fields: Fields, progress: Callable[[int], None], threads: int
) -> Iterator[Raw]:
    """Yield the rows as JSON objects.

    Raises:
        ConfigError: the package is missing.
        InputError: no column holds the text, or one that is asked for holds something else.
        OSError: the file is damaged.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError(
            "Parquet cannot be read here", where=path, expected="the package `pyarrow`",
            got="not installed", fix="pip install 'megaline[parquet]'",
        ) from error  # fmt: skip
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            names = _columns(file.schema_arrow, fields, path)
            total, done = file.metadata.num_rows, 0
            most = _rows_at_a_time(file.metadata, names)
            # Group by group: what stands before a damaged one is whole.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(
                    most, [group], columns=names, use_threads=threads > 1
                ):
                    columns = [_values(batch, name) for name in names]
                    for row in zip(*columns, strict=True):
                        yield Raw(done, done + 1, packed(dict(zip(names, row, strict=True))))
                        done += 1
                    progress(size * done // total)
    except pyarrow.ArrowException as error:
        raise OSError(f"{error}") from error


def _columns(schema: Any, fields: Fields, path: Path) -> list[str]:
    """The columns that are there; all hold texts, and all but the text's may hold numbers."""
    from pyarrow import types

    others = (fields.id_field, fields.title_field, fields.url_field, fields.language_field)
    found = []
    for name in dict.fromkeys((fields.text_field, *filter(None, others), *REVISIONS)):
        kind = _type(schema, name, path)
        if kind is None:
            continue
        told = kind.value_type if types.is_dictionary(kind) else kind
        numbered = name != fields.text_field and types.is_integer(told)
        if not (numbered or types.is_null(told) or _is_text(told)):
            raise InputError(
                "A Parquet column holds no text", where=f"{path}, column {name}",
                expected="texts" if name == fields.text_field else "texts or whole numbers",
                got=str(kind), fix="name another one, or '' for none: clean.id_field and its kin",
            )  # fmt: skip
        found.append(name)
    if fields.text_field not in found:
        raise InputError(
            "The Parquet file has no column for the text", where=path,
            expected=f"a column `{fields.text_field}`", got=", ".join(schema.names) or "none",
            fix="name the column: clean.text_field=…",
        )  # fmt: skip
    return found


def _type(schema: Any, name: str, path: Path) -> Any:
    """The type of a column, or of a field in one that holds tables; None where there is none."""
    from pyarrow import types

    if schema.names.count(name) > 1:
        raise InputError(
            "The Parquet file has two columns of one name", where=path, got=name,
            expected="names of their own", fix="rename one of them",
        )  # fmt: skip
    if name in schema.names:
        return schema.field(name).type
    head, *rest = name.split(".")
    kind = schema.field(head).type if schema.names.count(head) == 1 else None
    for part in rest:
        if kind is None or not types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
        or types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    )  # fmt: skip


def _values(batch: Any, name: str) -> list[Any]:
    """A column's values; texts as bytes, for some may be no UTF-8."""
    import pyarrow
    from pyarrow import compute, types

    if name in batch.schema.names:
        column = batch.column(name)
    else:
        head, *rest = name.split(".")
        column = compute.struct_field(batch.column(head), rest)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type):
        column = column.cast(pyarrow.large_binary())
    values: list[Any] = column.to_pylist()
    return values


def _rows_at_a_time(metadata: Any, names: list[str]) -> int:
    most = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        wanted = sum(c.total_uncompressed_size for c in columns if c.path_in_schema in names)
        most = max(most, wanted // max(group.num_rows, 1))
    return max(1, min(_MOST_ROWS, _BATCH // most))
