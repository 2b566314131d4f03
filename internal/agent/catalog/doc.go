// Package catalog is what an agent knows of the registry: a view that follows
// whichever registrar answers, that outlives all of them, and that says how old it
// is. It is kept on disk, so that a node that boots while no registrar answers
// serves what it knew.
package catalog
