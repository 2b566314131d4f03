// Package bench measures what the documentation claims. Each benchmark runs what
// it compares side by side in one run and reports ratios, because machines differ
// and are shared: make bench.
package bench
