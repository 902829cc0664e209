"""One workload, as it is written after `--shape`: `M=64,E=128,N=768,K=2048,topk=8,dtype=bf16`."""

from __future__ import annotations

from collections.abc import Mapping

from muhmod.errors import UsageError, nearest

# Bytes an element, by the names that a shape may use.
DTYPES = {"fp16": 2, "float16": 2, "half": 2, "bf16": 2, "bfloat16": 2, "fp32": 4, "float32": 4,
          "fp8": 1, "float8": 1}  # fmt: skip
# Larger numbers are typing mistakes.
_MOST = 2**40


def parse(text: str, kernel: str, keys: Mapping[str, str]) -> dict[str, int]:
    """The numbers of a shape; `element` holds the bytes of its dtype (2 where none is given).

    `keys` are the kernel's own, with what each means. Raises UsageError naming the key.
    """
    found: dict[str, int] = {"element": 2}
    for part in text.split(","):
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise UsageError(f"--shape {part!r}: write KEY=VALUE,KEY=VALUE", _usage(keys))
        if key == "dtype":
            if value not in DTYPES:
                raise UsageError(f"--shape dtype={value} is unknown{nearest(value, DTYPES)}")
            found["element"] = DTYPES[value]
        elif key not in keys:
            raise UsageError(
                f"--shape: {kernel} has no {key!r}{nearest(key, [*keys, 'dtype'])}", _usage(keys)
            )
        elif key in found:
            raise UsageError(f"--shape: {key} is given twice")
        else:
            found[key] = _number(key, value, 0 if key == "CTX" else 1)
    missing = [key for key in keys if key not in found]
    if missing:
        raise UsageError(f"--shape lacks {', '.join(missing)}", _usage(keys))
    return found


def _number(key: str, value: str, least: int) -> int:
    try:
        number = int(value)
    except ValueError:
        raise UsageError(f"--shape {key}={value} is no whole number") from None
    if not least <= number <= _MOST:
        raise UsageError(f"--shape {key}={value} is out of range ({least} to {_MOST:,})")
    return number


def _usage(keys: Mapping[str, str]) -> str:
    return ", ".join(f"{key} ({meaning})" for key, meaning in keys.items())
