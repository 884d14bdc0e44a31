"""A package of this name is among what Opacus installs: without this file Python takes that."""
