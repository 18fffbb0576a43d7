"""The one family of errors that are the user's to mend: `gmt` prints them as a sentence and exits 1."""


class GMTError(Exception):
    """A mistake of the user's, told in words that name what to change."""


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, short enough for a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class ConfigError(GMTError, ValueError):
    """Settings that cannot be used; the message lists every one of them."""


class ConversionError(GMTError, ValueError):
    """A file that `gmt convert` cannot turn into a model, or back."""


class DataError(GMTError, ValueError):
    """Text or a token stream that cannot be used; names the file and line."""
