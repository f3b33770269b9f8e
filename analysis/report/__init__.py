"""The report page: what analyze.py found about every head, as one HTML file that needs no network."""

from analysis.report.page import write_page

__all__ = ["write_page"]
