"""Opacus installs a package of this name too: without this file Python would import that one."""
