package generate

import (
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"sync"
)

// nobodysKey returns a set of keys (JWKS) with a public key whose private key nobody knows. It stands for keys that
// cannot be had: Envoy accepts the configuration and no token. The point of the curve is the first whose coordinate is
// the hash of a sentence, so that everybody can see that it was not made from a private key.
var nobodysKey = sync.OnceValue(func() string {
	for i := 0; ; i++ {
		x := sha256.Sum256([]byte("holdfast: nobody knows the private key of this point " + strconv.Itoa(i)))
		px, py := elliptic.UnmarshalCompressed(elliptic.P256(), append([]byte{2}, x[:]...))
		if px == nil {
			continue // about every second hash is no coordinate of a point
		}
		y := make([]byte, 32)
		encode := base64.RawURLEncoding.EncodeToString
		return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","x":%q,"y":%q}]}`, encode(x[:]), encode(py.FillBytes(y)))
	}
})
