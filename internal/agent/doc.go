// Package agent is what runs on each node: it knows what runs there and whether
// that is well, and tells the registrar.
//
// Sources say what there is, the prober how it is, and a pure function makes of
// both what the node announces; the reporter keeps the registry equal to that. What
// is not known is not announced: until every source has been read and everything
// has been asked once, and while the node suspects itself, it reports its presence
// alone, and the registry stays as it is.
package agent
