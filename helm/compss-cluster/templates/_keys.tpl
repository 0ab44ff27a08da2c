{{- /*
The release's two ECDSA keys: `client-key` with which the master reaches the workers, `host-key` by which they prove themselves.
ECDSA P-256, because Helm writes it in the SEC 1 form ("EC PRIVATE KEY"), which every OpenSSH reads and which carries the public
point at a fixed place; OpenSSH before 9.6 does not read the form that Helm has for Ed25519.
*/ -}}

{{- /* The public half, as OpenSSH writes it, of a private key in that form. RFC 5915 for the offsets, RFC 5656 for the result. */ -}}
{{- define "compssCluster.publicKey" -}}
{{- $der := regexReplaceAll "-----[A-Z ]+-----|\\s" . "" | b64dec -}}
{{- if ne (len $der) 121 -}}
{{- fail (printf "a key of this release is not an ECDSA P-256 key.\n  seen:     %d bytes\n  expected: 121 bytes\n  do:       delete the release's Secret and upgrade again" (len $der)) -}}
{{- end -}}
{{- $head := "\x00\x00\x00\x13ecdsa-sha2-nistp256\x00\x00\x00\x08nistp256\x00\x00\x00\x41" -}}
{{- printf "ecdsa-sha2-nistp256 %s" (printf "%s%s" $head (substr 56 121 $der) | b64enc) -}}
{{- end -}}
