package captcha

import (
	"bytes"
	"context"
	"encoding/base64"
	"image/png"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

func TestReadAnswer(t *testing.T) {
	for text, want := range map[string]string{
		"271828": "271828", " 27 18 28 ": "271828", "27182": "", "2718281": "", "27182a": "", "27-18-28": "",
		"٢٧١٨٢٨": "", "２７１８２８": "", "27182\x00": "", "271828" + strings.Repeat(" ", 100): "",
	} {
		if got := readAnswer(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	for _, seed := range []string{"271828", " 2 7 1 8 2 8", "２７１８２８", "", "\xff"} {
		f.Add(seed)
	}
	form := regexp.MustCompile(`^([0-9]{6})?$`)
	f.Fuzz(func(t *testing.T, text string) {
		if got := readAnswer(text); !form.MatchString(got) || got != "" && readAnswer(got) != got {
			t.Errorf("%q: %q", text, got)
		}
	})
}

// stuck is a database that answers when it is let.
type stuck struct{ free chan struct{} }

func (s stuck) AddCaptcha(ctx context.Context, _, _ []byte, _, _ time.Time, _ int) error {
	select {
	case <-s.free:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (stuck) TakeCaptcha(context.Context, []byte, time.Time) ([]byte, error) { return nil, nil }

// However many strangers ask, only so many pictures are made at once; who waits too long is told to come back.
func TestMakingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := stuck{make(chan struct{})}
		s := NewService(store, RandomDigits, time.Now)
		results := make(chan error, 20)
		for range 20 {
			go func() {
				_, err := s.New(t.Context())
				results <- err
			}()
		}
		synctest.Wait()
		time.Sleep(patience)
		synctest.Wait()
		if n := len(results); n != 20-concurrency {
			t.Errorf("%d were told to come back", n)
		}
		for range len(results) {
			if err := <-results; !fault.Is(err, fault.Unavailable) {
				t.Error(err)
			}
		}
		close(store.free)
		for range concurrency {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestPictureAndSound(t *testing.T) {
	free := make(chan struct{})
	close(free)
	s := NewService(stuck{free}, RandomDigits, time.Now)
	made, err := s.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^cap_[a-z0-9]{20}$`).MatchString(made.ID) {
		t.Errorf("id %q", made.ID)
	}
	decode := func(url, prefix string) []byte {
		t.Helper()
		text, ok := strings.CutPrefix(url, prefix)
		content, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil {
			t.Fatalf("%.40q: %v", url, err)
		}
		return content
	}
	if _, err := png.Decode(bytes.NewReader(decode(made.Image, "data:image/png;base64,"))); err != nil {
		t.Error(err)
	}
	if sound := decode(made.Audio, "data:audio/wav;base64,"); !bytes.HasPrefix(sound, []byte("RIFF")) || len(sound) > 512<<10 {
		t.Errorf("%d bytes of sound: %.20q", len(sound), sound)
	}
}
