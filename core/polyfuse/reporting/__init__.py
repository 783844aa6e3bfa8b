"""`polyfuse report`: what was compiled, why, and what it costs, as one HTML page or as JSON.

    collect    watches compiles and runs, and keeps what it saw
    describe   what was seen, as plain data: the JSON form (docs/report.md has its fields)
    compare    two of these, side by side
    page       the HTML file: that data and the page that shows it (assets/, built from tools/report_ui)
    function   `polyfuse.report(fn)(*args)`

Nothing here takes part in compiling, and nothing is collected unless a report was asked for.
"""
