package kubectl

import (
	"fmt"
	"sync"
	"unicode"
	"unicode/utf8"
)

// output is what a run says in both streams, made safe to show, as far as it fits.
type output struct {
	mu        sync.Mutex
	left      int // bytes of JSON
	truncated bool
}

// stream is one of them. It takes everything: a writer that fails would end kubectl in the middle of a word.
type stream struct {
	all  *output
	text []byte
	part []byte // the beginning of a character whose rest has not come yet
}

func (o *output) stream() *stream { return &stream{all: o} }

// Write implements io.Writer.
func (s *stream) Write(p []byte) (int, error) {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	rest := p
	if len(s.part) > 0 {
		rest = append(s.part, p...) //nolint:gocritic // it is made anew below
	}
	s.part = append([]byte(nil), s.show(rest, false)...)
	return len(p), nil
}

// finish gives the text, once nothing more is written.
func (s *stream) finish() string {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.part = s.show(s.part, true)
	return string(s.text)
}

// show appends what p holds and gives the part of a character at its end; where last, there is no such part.
func (s *stream) show(p []byte, last bool) []byte {
	for len(p) > 0 {
		if !last && !utf8.FullRune(p) {
			return p
		}
		r, size := utf8.DecodeRune(p)
		p = p[size:]
		if s.all.truncated {
			continue
		}
		text := visible(r)
		cost := jsonSize(text)
		if cost > s.all.left {
			s.all.truncated = true
			continue
		}
		s.all.left -= cost
		s.text = append(s.text, text...)
	}
	return nil
}

// visible is r as it is shown: a character that a terminal would obey is told by its name.
func visible(r rune) string {
	switch {
	case r == '\n', r == '\t':
		return string(r)
	case r < ' ', r == 0x7f:
		return "^" + string(r^0x40)
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp):
		return fmt.Sprintf("<U+%04X>", r)
	}
	return string(r)
}

// jsonSize is what text takes in a JSON string.
func jsonSize(text string) int {
	n := 0
	for _, r := range text {
		switch r {
		case '"', '\\', '\n', '\t':
			n += 2
		case '<', '>', '&':
			n += 6
		default:
			n += utf8.RuneLen(r)
		}
	}
	return n
}
