//go:build !unix

package freeport

func reserve(uint16) bool { return true }
