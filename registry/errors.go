package registry

import (
	"errors"
	"fmt"
)

// Kind sorts errors by what the caller does next.
type Kind uint8

const (
	// Internal: a defect or a fault without a better name.
	Internal Kind = iota
	// Invalid: the request breaks a rule; repeating it is useless.
	Invalid
	// Conflict: the key is held by another node.
	Conflict
	// NotFound: what was named does not exist.
	NotFound
	// Unavailable: retry later; whether a write took place is not known.
	Unavailable
	// SlowReader: the reader was cut off; watch again.
	SlowReader
	// Denied: the caller may not do this.
	Denied
	// Limited: the caller asks for more than its share; slow down and retry.
	// Nothing was done.
	Limited
)

// String returns the kind's name in lower case.
func (k Kind) String() string {
	switch k {
	case Invalid:
		return "invalid"
	case Conflict:
		return "conflict"
	case NotFound:
		return "not found"
	case Unavailable:
		return "unavailable"
	case SlowReader:
		return "slow reader"
	case Denied:
		return "denied"
	case Limited:
		return "limited"
	default:
		return "internal"
	}
}

// Error is an error of a registry. Its text is written for people and says what
// was wrong, where, and what to do.
type Error struct {
	Kind Kind
	// Field that was wrong, when Kind is Invalid: for example "service" or
	// "endpoints[3].ip".
	Field string
	Err   error
}

// Error returns the text, led by the field where there is one.
func (e *Error) Error() string {
	if e.Field != "" {
		return e.Field + ": " + e.Err.Error()
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an Error of the given kind; %w works as in fmt.Errorf.
func Errorf(kind Kind, format string, args ...any) error {
	return &Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Invalidf returns an Invalid error about one field.
func Invalidf(field, format string, args ...any) error {
	return &Error{Kind: Invalid, Field: field, Err: fmt.Errorf(format, args...)}
}

// KindOf returns the kind of the first Error in err's chain, Internal if there
// is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}
