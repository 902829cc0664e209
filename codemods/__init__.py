"""One tuning site a file. The file's name, `-` for `_`, is the site's id in rules, reports and fixtures."""
