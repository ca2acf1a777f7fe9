"""Reports of runs, fits and predictions: tables, pictures, pages and what the command line does."""
