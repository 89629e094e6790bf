"""Write docs/queries.md from the catalogue. Run it after changing what can be asked."""

from pathlib import Path

from headwater.query import reference_page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "queries.md"

if __name__ == "__main__":
    PAGE.write_text(reference_page(), encoding="utf-8")
    print(f"wrote {PAGE}")
