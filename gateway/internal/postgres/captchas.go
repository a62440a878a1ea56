package postgres

import (
	"context"
	"time"

	"github.com/kubebyon/kubebyon/gateway/internal/captcha"
)

var _ captcha.Store = (*Store)(nil)

// AddCaptcha implements captcha.Store. Rows that another caller is removing are left to it: nobody waits, and no two wait for
// each other.
func (s *Store) AddCaptcha(ctx context.Context, idHash, answerHash []byte, now, expiresAt time.Time, most int) error {
	return s.within(ctx, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `with dead as (
				delete from captchas where id_hash in (select id_hash from captchas where expires_at <= $3 for update skip locked)
			), crowded as (
				delete from captchas where id_hash in (
					select id_hash from captchas where expires_at > $3 order by expires_at desc offset $5 for update skip locked)
			) insert into captchas (id_hash, answer_hash, expires_at) values ($1, $2, $4)`, idHash, answerHash, now, expiresAt, most-1)
		return err
	})
}

// TakeCaptcha implements captcha.Store.
func (s *Store) TakeCaptcha(ctx context.Context, idHash []byte, now time.Time) (answerHash []byte, err error) {
	err = s.within(ctx, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `with taken as (delete from captchas where id_hash = $1 returning answer_hash, expires_at)
			select answer_hash from taken where expires_at > $2`, idHash, now).Scan(&answerHash)
	})
	return answerHash, err
}
