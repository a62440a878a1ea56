// Package captcha makes pictures and sounds of digits that a person can read and a program can hardly. It must never keep or
// log an answer.
package captcha

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"io"
	"strings"
	"time"

	"github.com/dchest/captcha"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

const (
	// Life is how long a captcha may be answered.
	Life = 5 * time.Minute
	// Most is how many wait for their answer at once; the oldest make room.
	Most = 10_000
	// Length is an answer's, in digits.
	Length = 6

	// Each picture and sound takes some milliseconds of a core, and strangers ask for them.
	concurrency = 2
	patience    = 2 * time.Second
)

// Store keeps captchas. Every method fails with unavailable while the database is away.
type Store interface {
	// AddCaptcha stores the hashes and removes what has expired at now, and the oldest beyond most.
	AddCaptcha(ctx context.Context, idHash, answerHash []byte, now, expiresAt time.Time, most int) error
	// TakeCaptcha removes the captcha and gives its answer's hash, to exactly one of any number of concurrent callers;
	// not_found where there is none, or it has expired at now.
	TakeCaptcha(ctx context.Context, idHash []byte, now time.Time) ([]byte, error)
}

// Captcha is what its asker is shown.
type Captcha struct {
	ID        string    `json:"captcha_id"` // cap_ + 20 of [a-z0-9]
	Image     string    `json:"image"`      // data URL, PNG
	Audio     string    `json:"audio"`      // data URL, WAV, in English
	ExpiresAt time.Time `json:"expires_at"`
}

// Service makes captchas and checks answers.
type Service struct {
	store  Store
	digits func(length int) []byte
	now    func() time.Time
	slots  chan struct{}
}

// NewService makes one. digits gives the answers' digits, each 0 to 9: RandomDigits, but in tests that must know them. now is
// the clock.
func NewService(store Store, digits func(length int) []byte, now func() time.Time) *Service {
	return &Service{store: store, digits: digits, now: now, slots: make(chan struct{}, concurrency)}
}

// RandomDigits cannot be guessed.
func RandomDigits(length int) []byte { return captcha.RandomDigits(length) }

// New makes a captcha. It fails with captcha_busy (unavailable) when too many are being made.
func (s *Service) New(ctx context.Context) (Captcha, error) {
	if err := s.enter(ctx); err != nil {
		return Captcha{}, err
	}
	defer func() { <-s.slots }()
	digits := s.digits(Length)
	made := Captcha{ID: newID(), ExpiresAt: s.now().UTC().Add(Life)}
	var err error
	if made.Image, err = dataURL("image/png", captcha.NewImage(made.ID, digits, captcha.StdWidth, captcha.StdHeight)); err != nil {
		return Captcha{}, err
	}
	if made.Audio, err = dataURL("audio/wav", captcha.NewAudio(made.ID, digits, "en")); err != nil {
		return Captcha{}, err
	}
	answer := make([]byte, Length)
	for i, d := range digits {
		answer[i] = '0' + d
	}
	if err := s.store.AddCaptcha(ctx, hashID(made.ID), hashAnswer(made.ID, string(answer)), s.now(), made.ExpiresAt, Most); err != nil {
		return Captcha{}, err
	}
	return made, nil
}

// Check spends the captcha, whatever the answer. It fails with captcha_required where none is given, and with captcha_wrong
// where the answer is wrong, or the captcha unknown, used or expired (both invalid).
func (s *Service) Check(ctx context.Context, id, answer string) error {
	if id == "" || answer == "" {
		return Required()
	}
	kept, err := s.store.TakeCaptcha(ctx, hashID(id), s.now())
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	if err == nil && subtle.ConstantTimeCompare(kept, hashAnswer(id, readAnswer(answer))) == 1 {
		return nil
	}
	return fault.New(fault.Invalid, "captcha_wrong", "the captcha's answer is wrong, or the captcha was used or has expired").In("captcha_answer").
		Do("get a new one with POST /api/auth/captcha")
}

// Required is the refusal of what needs a captcha's answer and has none: invalid, captcha_required.
func Required() *fault.Error {
	return fault.New(fault.Invalid, "captcha_required", "this needs the answer to a captcha").In("captcha_answer").
		Do("get a captcha with POST /api/auth/captcha and send captcha_id and captcha_answer")
}

func (s *Service) enter(ctx context.Context) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-timer.C:
		return fault.New(fault.Unavailable, "captcha_busy", "too many captchas are being made at once").Do("try again in a few seconds")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readAnswer takes digits as people type them, with blanks between. What cannot be an answer gives an empty text, which is none.
func readAnswer(text string) string {
	if len(text) > 4*Length {
		return ""
	}
	answer := strings.ReplaceAll(text, " ", "")
	if len(answer) != Length || strings.Trim(answer, "0123456789") != "" {
		return ""
	}
	return answer
}

func dataURL(kind string, content io.WriterTo) (string, error) {
	var b bytes.Buffer
	if _, err := content.WriteTo(&b); err != nil {
		return "", err
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(b.Bytes()), nil
}

func hashID(id string) []byte {
	h := sha256.Sum256([]byte(id))
	return h[:]
}

// hashAnswer covers the id, which is not stored: without it the few answers that there are could be tried.
func hashAnswer(id, answer string) []byte {
	h := sha256.Sum256([]byte("answer\n" + id + "\n" + answer))
	return h[:]
}

func newID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 0, 20)
	for len(id) < cap(id) {
		var b [32]byte
		_, _ = rand.Read(b[:]) // never fails
		for _, b := range b {
			// 252 is the largest multiple of 36 in a byte: no letter is likelier than another.
			if b < 252 && len(id) < cap(id) {
				id = append(id, alphabet[b%36])
			}
		}
	}
	return "cap_" + string(id)
}
