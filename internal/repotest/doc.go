// Package repotest holds the repository's own rules, as tests: which package may
// import which, what every package has to say of itself, and how long a file may
// be.
package repotest
