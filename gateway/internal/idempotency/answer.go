package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
)

// Keeps reports whether answers with that status are kept: what failed may be tried again.
func Keeps(status int) bool { return status >= 200 && status < 300 }

// encode gives nil where the answer is too large to be kept.
func encode(a Answer) ([]byte, error) {
	size := len(a.Body)
	for name, values := range a.Header {
		size += len(name) + len(strings.Join(values, ""))
	}
	if size > MaxAnswer {
		return nil, nil
	}
	return json.Marshal(a)
}

// decode takes what encode gives. It holds it to what may be written into an answer all the same: an older version may have sealed it.
func decode(plain []byte) (Answer, error) {
	var a Answer
	strict := json.NewDecoder(bytes.NewReader(plain))
	strict.DisallowUnknownFields()
	if err := strict.Decode(&a); err != nil {
		return Answer{}, errors.New("it is no answer")
	}
	if _, err := strict.Token(); !errors.Is(err, io.EOF) {
		return Answer{}, errors.New("something follows the answer")
	}
	if !Keeps(a.Status) {
		return Answer{}, errors.New("its status is none that is kept")
	}
	for name, values := range a.Header {
		if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !letter(r) && r != '-' }) {
			return Answer{}, errors.New("it has a header that is none")
		}
		for _, value := range values {
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				return Answer{}, errors.New("it has a header with a control character")
			}
		}
	}
	return a, nil
}

func letter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
