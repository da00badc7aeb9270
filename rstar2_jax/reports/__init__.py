"""Reports of runs as files that open offline: charts, pages."""
