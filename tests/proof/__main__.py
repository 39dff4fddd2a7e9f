"""`python -m tests.proof` brings the page "How it is proven" up to date with the records."""

from tests.proof.page import PAGE, generated, records

PAGE.write_text(generated(PAGE.read_text(encoding="utf-8"), records()), encoding="utf-8")
