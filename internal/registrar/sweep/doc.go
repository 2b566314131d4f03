// Package sweep removes the endpoints of nodes that are gone: of the own cluster
// alone, by one registrar of it at a time.
//
// What is decided is pure, in plan.go. [Sweeper] runs it: every registrar of a
// cluster looks at its census, so that each can tell what would go, and the one
// that is elected removes it.
package sweep
