"""Broker settings of TLS and SASL. Most can be given per listener, with `listener.name.<listener>.` in front.

The format is told in `definition.py`.
"""

SECURITY = """
principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder - medium \
broker refused
    Java class that names the user of a connection. Moldau builds principals as Kafka's default does.
sasl.client.callback.handler.class class null - medium static refused
    Java class. Moldau loads no Java classes.
sasl.enabled.mechanisms list GSSAPI unique medium broker
    SASL mechanisms of a listener. Moldau has PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER.
sasl.jaas.config password null - medium broker
    Users or credentials in JAAS format, usually given per listener and mechanism.
sasl.kerberos.kinit.cmd string /usr/bin/kinit - medium broker ignored
    Kerberos, which Moldau does not have.
sasl.kerberos.min.time.before.relogin long 60000 - medium broker ignored
    Kerberos, which Moldau does not have.
sasl.kerberos.principal.to.local.rules list DEFAULT unique medium broker ignored
    Kerberos, which Moldau does not have.
sasl.kerberos.service.name string null - medium broker ignored
    Kerberos, which Moldau does not have.
sasl.kerberos.ticket.renew.jitter double 0.05 - medium broker ignored
    Kerberos, which Moldau does not have.
sasl.kerberos.ticket.renew.window.factor double 0.8 - medium broker ignored
    Kerberos, which Moldau does not have.
sasl.login.callback.handler.class class null - medium static refused
    Java class. Moldau loads no Java classes.
sasl.login.class class null - medium static refused
    Java class. Moldau loads no Java classes.
sasl.login.connect.timeout.ms int null - low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.read.timeout.ms int null - low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.refresh.buffer.seconds short 300 - medium broker ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.refresh.min.period.seconds short 60 - medium broker ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.refresh.window.factor double 0.8 - medium broker ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.refresh.window.jitter double 0.05 - medium broker ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.retry.backoff.max.ms long 10000 - low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.login.retry.backoff.ms long 100 - low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.mechanism.controller.protocol string GSSAPI - high static
    SASL mechanism used towards controllers.
sasl.mechanism.inter.broker.protocol string GSSAPI - medium broker
    SASL mechanism used between brokers.
sasl.server.callback.handler.class class null - medium static \
only:org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler
    Java class. Moldau loads none; the one that verifies OAuth's tokens is what it does itself.
sasl.server.max.receive.size int 524288 - medium static
    Largest SASL message before a client is authenticated.
security.providers string null - low static refused
    Java class. Moldau loads no Java classes.
ssl.allow.dn.changes boolean false - low static ignored
    Let a renewed certificate carry another distinguished name. Moldau takes a renewed certificate as it is.
ssl.allow.san.changes boolean false - low static ignored
    Let a renewed certificate drop subject alternative names. Moldau takes a renewed certificate as it is.
ssl.cipher.suites list "" unique medium broker
    Cipher suites on offer; empty means the library's choice.
ssl.client.auth string none {required,requested,none} medium broker
    Whether clients must (`required`), may (`requested`) or need not (`none`) show a certificate.
ssl.enabled.protocols list TLSv1.2,TLSv1.3 unique medium broker
    TLS versions on offer.
ssl.endpoint.identification.algorithm string https - low broker
    `https` checks host names of other nodes; empty does not.
ssl.engine.factory.class class null - low broker refused
    Java class. Moldau loads no Java classes.
ssl.key.password password null - medium broker
    Password of the private key.
ssl.keymanager.algorithm string SunX509 - medium broker ignored
    Java's key manager, which Moldau does not use.
ssl.keystore.certificate.chain password null - medium broker
    Certificate chain in PEM.
ssl.keystore.key password null - medium broker
    Private key in PEM.
ssl.keystore.location string null - medium broker
    File with the private key and its certificates.
ssl.keystore.password password null - medium broker
    Password of that file.
ssl.keystore.type string JKS - medium broker
    Format of that file: `PEM` or `PKCS12`; if not set, whatever the file is.
ssl.principal.mapping.rules string DEFAULT - low static
    How a certificate's distinguished name becomes a user name.
ssl.protocol string TLSv1.3 - medium broker ignored
    Java's TLS context, which Moldau does not use; see `ssl.enabled.protocols`.
ssl.provider string null - medium broker ignored
    Java's TLS provider, which Moldau does not use.
ssl.secure.random.implementation string null - low broker ignored
    Java's random generator, which Moldau does not use.
ssl.trustmanager.algorithm string PKIX - medium broker ignored
    Java's trust manager, which Moldau does not use.
ssl.truststore.certificates password null - medium broker
    Trusted certificates in PEM.
ssl.truststore.location string null - medium broker
    File with trusted certificates.
ssl.truststore.password password null - medium broker
    Password of that file.
ssl.truststore.type string JKS - medium broker
    Format of that file: `PEM` or `PKCS12`; if not set, whatever the file is.
"""

OAUTH = """
sasl.oauthbearer.assertion.algorithm string RS256 ~{es256,rs256} medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.aud string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.exp.seconds int 300 [0,...,86400] low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.iss string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.jti.include boolean false - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 [0,...,3600] low static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.claim.sub string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.file string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.private.key.file string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.private.key.passphrase password null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.assertion.template.file string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.client.credentials.client.id string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.client.credentials.client.secret password null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.clock.skew.seconds int 30 - low static
    How far the clocks of whoever made a token and ours may differ.
sasl.oauthbearer.expected.audience list "" unique high static
    Of these, a token must name one; empty means that nobody looks.
sasl.oauthbearer.expected.issuer string null - high static
    Who must have made a token; not set means that nobody looks.
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 - low static
    How often the keys of tokens are fetched anew.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 - low static
    Longest wait before they are asked for again.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 - low static
    First wait after they could not be had; doubles.
sasl.oauthbearer.jwks.endpoint.url string null - medium static
    Where the keys of tokens are, an https or a file URL.
sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever - medium \
static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator - medium \
static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.scope string null - medium static ignored
    Logging in with OAuth, which Moldau's nodes do not.
sasl.oauthbearer.scope.claim.name string scope - low static
    Claim of a token that holds its scope.
sasl.oauthbearer.sub.claim.name string sub - low static
    Claim of a token that holds the user.
sasl.oauthbearer.token.endpoint.url string null - medium static
    File (file:///…) with the token that this node logs in with at others; read anew for each connection.
"""
