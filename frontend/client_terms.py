"""On which terms a request is served beside others: its place, its share, its patience."""

from dataclasses import dataclass

from paged_serve.protocol.errors import InvalidRequest

MAX_CACHE_SALT_CHARS = 128
MAX_TENANT_CHARS = 256
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
MAX_TIMEOUT_S = 86400.0


@dataclass(frozen=True, slots=True)
class RequestTerms:
    """As EngineCoreRequest carries them; `timeout_s` 0: it waits for ever."""

    priority: int = 0
    cache_salt: str = ""
    tenant: str = ""
    weight: float = 1.0
    timeout_s: float = 0.0

    def check(self) -> None:
        """Raise InvalidRequest for what would break a message's bounds."""
        if not isinstance(self.cache_salt, str) or len(self.cache_salt) > MAX_CACHE_SALT_CHARS:
            raise InvalidRequest(
                f"cache_salt must be a string of at most {MAX_CACHE_SALT_CHARS} characters", "cache_salt"
            )
        if not isinstance(self.priority, int) or not -(2**31) <= self.priority < 2**31:
            raise InvalidRequest(f"priority is {self.priority!r}; it must be an integer of 32 bits", "priority")
        if not isinstance(self.tenant, str) or len(self.tenant) > MAX_TENANT_CHARS:
            raise InvalidRequest(f"tenant must be a string of at most {MAX_TENANT_CHARS} characters", "tenant")
        for name, low, high in (("weight", MIN_WEIGHT, MAX_WEIGHT), ("timeout_s", 0.0, MAX_TIMEOUT_S)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low <= value <= high:
                raise InvalidRequest(f"{name} is {value!r}; it must be a number from {low:g} to {high:g}", name)
