package account

import "fmt"

// The mails' texts. An address never stands in one, but for the one that the mail goes to.

func registerLetter(email, code string) letter {
	return letter{email, "Your KubeBYON code", fmt.Sprintf(`Somebody, hopefully you, wants to register at KubeBYON with this address.

Your code: %s

It works once and for 15 minutes. If it was not you, do nothing: without the code there will be no account.
`, showCode(code))}
}

func knownLetter(email string, p Policy) letter {
	return letter{email, "You have a KubeBYON account", fmt.Sprintf(`Somebody, hopefully you, wants to register at KubeBYON with this address, but it has an account already.

%s

If it was not you, do nothing: your account is as it was.
`, howToReset(p))}
}

func resetLetter(email, code string) letter {
	return letter{email, "Your KubeBYON code", fmt.Sprintf(`Somebody, hopefully you, wants to set a new password for the KubeBYON account with this address.

Your code: %s

It works once and for 15 minutes. If it was not you, do nothing: without the code the password stays as it is.
`, showCode(code))}
}

func changedLetter(email string, p Policy) letter {
	return letter{email, "Your KubeBYON password was changed", fmt.Sprintf(`The password of your KubeBYON account was changed just now, and its other sessions were ended.

If it was not you, set a new one at once. %s
`, howToReset(p))}
}

func invitationLetter(email, link string) letter {
	return letter{email, "You are invited to KubeBYON", fmt.Sprintf(`An administrator of KubeBYON invites you. Open this link to choose a password:

%s

It works once and for 7 days. If you expect no invitation, do nothing.
`, link)}
}

func howToReset(p Policy) string {
	if p.PublicBaseURL == "" {
		return "If you forgot the password, ask for a code to reset it."
	}
	return "If you forgot the password, set a new one here: " + p.PublicBaseURL + "/reset"
}
