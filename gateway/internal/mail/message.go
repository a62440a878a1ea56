package mail

import (
	"net/mail"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	gomail "github.com/wneessen/go-mail"

	"github.com/kubebyon/kubebyon/pkg/fault"
)

// maxSubject bounds a subject, in characters.
const maxSubject = 200

// check refuses what could become another header or command than the one it stands in.
func check(to, subject string) error {
	if !address(to) {
		return fault.New(fault.Invalid, "email_invalid", "this is no e-mail address of the form name@example.com").In("to")
	}
	if subject == "" || !plain(subject) || utf8.RuneCountInString(subject) > maxSubject {
		return fault.New(fault.Invalid, "mail_subject_invalid", "a subject is one line of 1 to %d characters", maxSubject).In("subject")
	}
	return nil
}

// address takes the bare form alone, in ASCII.
func address(text string) bool {
	if len(text) > 254 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`<>",;\`, r) }) {
		return false
	}
	parsed, err := mail.ParseAddress(text)
	return err == nil && parsed.Address == text
}

// plain is UTF-8 in one line.
func plain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) && !strings.ContainsAny(text, "\u2028\u2029")
}

// compose makes the message. domain is the sender's, which names the message rather than this machine.
func compose(l letter, from string, at time.Time) (message *gomail.Msg, domain string, err error) {
	wrong := func(cause error) (*gomail.Msg, string, error) {
		return nil, "", fault.New(fault.Precondition, "mail_from_invalid", "the sender in the settings is no e-mail address").In("mail.from").
			Do("set mail.from in the settings").Because(cause)
	}
	sender, err := mail.ParseAddress(from)
	if err != nil || !plain(from) || !plain(sender.Name) || !address(sender.Address) {
		return wrong(err)
	}
	_, domain, _ = strings.Cut(sender.Address, "@")
	message = gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	if err := message.FromFormat(sender.Name, sender.Address); err != nil {
		return wrong(err)
	}
	if err := message.To(l.to); err != nil {
		return nil, "", fault.New(fault.Invalid, "email_invalid", "this is no e-mail address of the form name@example.com").In("to")
	}
	message.Subject(l.subject)
	message.SetDateWithValue(at)
	message.SetMessageIDWithValue(l.id + "@" + domain)
	message.SetGenHeader("Auto-Submitted", "auto-generated") // nobody's out-of-office answers it
	message.SetBodyString(gomail.TypeTextPlain, strings.ToValidUTF8(l.text, "\uFFFD"))
	return message, domain, nil
}
