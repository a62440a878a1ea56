// Package deploy roots the module of everything that installs, runs and proves the product.
package deploy
