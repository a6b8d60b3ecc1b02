#include "src/control/handshake.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "src/control/peers_for_test.h"

namespace verbena {
namespace {

using State = Handshake::State;
using testing::HasSubstr;

using Alter = std::function<void(int message, std::vector<std::byte>& bytes)>;

// Carries messages to and fro until both are silent, `step` bytes at a time. `alter` may change
// what is carried; the connector says messages 0 and 2, the listener 1 and 3.
void carry(TappedHandshake& connector, TappedHandshake& listener, size_t step = SIZE_MAX,
           const Alter& alter = nullptr) {
  int message = 0;
  bool moved = true;
  while (moved) {
    moved = false;
    for (auto [from, to] : {std::pair(&connector, &listener), std::pair(&listener, &connector)}) {
      std::vector<std::byte> bytes = from->next_output();
      if (bytes.empty()) continue;
      moved = true;
      if (alter) alter(message, bytes);
      ++message;
      for (size_t at = 0; at < bytes.size(); at += std::min(step, bytes.size() - at)) {
        to->take(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
      }
    }
  }
}

// What arrives of `frame` that one side sends to the other over the streams of their handshakes.
std::vector<std::byte> carry_data(TappedHandshake& from, TappedHandshake& to,
                                  const std::vector<std::byte>& frame) {
  const FileDescriptor from_socket = from.handshake.take_socket();
  const FileDescriptor to_socket = to.handshake.take_socket();
  const std::unique_ptr<TlsStream> sender = from.handshake.take_stream();
  const std::unique_ptr<TlsStream> receiver = to.handshake.take_stream();
  sender->write(frame);
  sender->flush();
  to.tap.say(from.tap.hear_available());
  std::vector<std::byte> got(2 * frame.size());
  size_t got_bytes = 0;
  const TlsStream::Outcome outcome = receiver->read(got, &got_bytes);
  got.resize(outcome == TlsStream::Outcome::kDone ? got_bytes : 0);
  return got;
}

Preface preface_in(const std::vector<std::byte>& bytes) {
  EncodedPreface encoded{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), encoded.size()), encoded.begin());
  Preface preface;
  EXPECT_TRUE(decode_preface(encoded, &preface));
  return preface;
}

TEST(HandshakeTest, BothSidesWithTheSecretAgree) {
  const JobSecret key = secret();
  for (size_t step : {SIZE_MAX, size_t{1}, size_t{7}}) {
    TappedHandshake connector(ControlRole::kConnector, key);
    TappedHandshake listener(ControlRole::kListener, key);
    carry(connector, listener, step);
    EXPECT_EQ(connector.handshake.state(), State::kDone);
    EXPECT_EQ(listener.handshake.state(), State::kDone);
    EXPECT_TRUE(connector.handshake.failure("peer").ok());
    EXPECT_EQ(carry_data(connector, listener, bytes_of("hello")), bytes_of("hello"));
  }
}

// Two round trips, and neither side is done before the other one has let it in.
TEST(HandshakeTest, TheConnectorIsDoneWhenTheListenerHasAdmittedIt) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  TappedHandshake listener(ControlRole::kListener, key);
  int messages = 0;
  carry(connector, listener, SIZE_MAX, [&](int message, std::vector<std::byte>&) {
    messages = message + 1;
    EXPECT_EQ(connector.handshake.state(), State::kInProgress) << message;
    EXPECT_EQ(listener.handshake.state(), message < 3 ? State::kInProgress : State::kDone);
  });
  EXPECT_EQ(messages, 4);
}

TEST(HandshakeTest, SecretsOfEveryLengthWork) {
  for (size_t bytes : {JobSecret::kMinBytes, size_t{512}, size_t{513}, JobSecret::kMaxBytes}) {
    const JobSecret key = *JobSecret::from_string(std::string(bytes, 'x'));
    const JobSecret other = *JobSecret::from_string(std::string(bytes - 1, 'x') + 'y');
    TappedHandshake connector(ControlRole::kConnector, key);
    TappedHandshake listener(ControlRole::kListener, key);
    carry(connector, listener);
    EXPECT_EQ(connector.handshake.state(), State::kDone) << bytes;
    TappedHandshake stranger(ControlRole::kConnector, other);
    TappedHandshake careful(ControlRole::kListener, key);
    carry(stranger, careful);
    EXPECT_EQ(careful.handshake.state(), State::kRefused) << bytes;
  }
}

TEST(HandshakeTest, AConnectorWithTheWrongSecretIsRefusedAndLearnsNothing) {
  const JobSecret right = secret();
  const JobSecret wrong = other_secret();
  TappedHandshake connector(ControlRole::kConnector, wrong);
  TappedHandshake listener(ControlRole::kListener, right);
  carry(connector, listener, SIZE_MAX, [](int message, std::vector<std::byte>& bytes) {
    // All that the listener says: nothing to try guesses on.
    if (message == 1) {
      const EncodedPreface refusal = encode_refusal(kControlProtocolVersion, Refusal::kWrongSecret);
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), refusal.begin(), refusal.end()))
          << bytes.size() << " bytes";
    }
    EXPECT_LE(message, 1);
  });
  EXPECT_EQ(listener.handshake.state(), State::kRefused);
  EXPECT_EQ(connector.handshake.state(), State::kRefusedByPeer);
  const Status here = connector.handshake.failure("node-a:1");
  EXPECT_EQ(here.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(here.message(), HasSubstr("wrong secret: node-a:1 has another job secret"));
  const Status there = listener.handshake.failure("node-b:2");
  EXPECT_EQ(there.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(there.message(), HasSubstr("wrong secret: node-b:2 did not prove"));
}

// A TLS endpoint of a stranger, behind a right preface.
class StrangersTls {
 public:
  explicit StrangersTls(bool listens) : context_(SSL_CTX_new(TLS_method())) {
    if (listens) give_certificate();
    ssl_ = SSL_new(context_);
    incoming_ = BIO_new(BIO_s_mem());
    outgoing_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, incoming_, outgoing_);
    if (listens) {
      SSL_set_accept_state(ssl_);
    } else {
      SSL_set_connect_state(ssl_);
    }
  }
  StrangersTls(const StrangersTls&) = delete;
  StrangersTls& operator=(const StrangersTls&) = delete;
  ~StrangersTls() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  std::vector<std::byte> answer(std::span<const std::byte> bytes) {
    BIO_write(incoming_, bytes.data(), static_cast<int>(bytes.size()));
    done_ = SSL_do_handshake(ssl_) == 1;
    std::vector<std::byte> said(BIO_ctrl_pending(outgoing_));
    BIO_read(outgoing_, said.data(), static_cast<int>(said.size()));
    return said;
  }
  bool done() const { return done_; }

 private:
  void give_certificate() {
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    EXPECT_EQ(SSL_CTX_use_certificate(context_, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }

  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  BIO* incoming_ = nullptr;  // both belong to ssl_
  BIO* outgoing_ = nullptr;
  bool done_ = false;
};

TEST(HandshakeTest, AListenerThatShowsACertificateInsteadIsRefused) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  StrangersTls impostor(true);
  const std::vector<std::byte> hello = connector.next_output();
  connector.take(encode_preface({.kind = PrefaceKind::kWelcome}));
  const std::vector<std::byte> answer = impostor.answer(std::span(hello).subspan(kPrefaceBytes));
  ASSERT_FALSE(answer.empty());
  connector.take(answer);
  EXPECT_EQ(connector.handshake.state(), State::kRefused);
  EXPECT_EQ(connector.handshake.failure("peer").code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(connector.handshake.failure("peer").message(), HasSubstr("wrong secret: peer"));
  impostor.answer(connector.next_output());
  EXPECT_FALSE(impostor.done());
}

TEST(HandshakeTest, AConnectorWithoutAPreSharedKeyIsRefused) {
  const JobSecret key = secret();
  TappedHandshake listener(ControlRole::kListener, key);
  StrangersTls stranger(false);
  listener.take(encode_preface({.kind = PrefaceKind::kHello}));
  EXPECT_TRUE(listener.next_output().empty());
  listener.take(stranger.answer({}));
  EXPECT_EQ(listener.handshake.state(), State::kRefused);
  EXPECT_EQ(preface_in(listener.next_output()).refusal, Refusal::kNotAPeer);
}

TEST(HandshakeTest, AMirrorIsNoPeer) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  connector.take(connector.next_output());
  EXPECT_EQ(connector.handshake.state(), State::kRefused);
  EXPECT_EQ(connector.handshake.failure("peer").code(), StatusCode::kProtocolViolation);
}

TEST(HandshakeTest, ARecordedHandshakeCannotBePlayedBack) {
  const JobSecret key = secret();
  std::vector<std::vector<std::byte>> recorded;
  {
    TappedHandshake connector(ControlRole::kConnector, key);
    TappedHandshake listener(ControlRole::kListener, key);
    carry(connector, listener, SIZE_MAX,
          [&](int, std::vector<std::byte>& bytes) { recorded.push_back(bytes); });
    ASSERT_EQ(listener.handshake.state(), State::kDone);
    ASSERT_EQ(recorded.size(), 4u);
  }
  {
    TappedHandshake listener(ControlRole::kListener, key);
    listener.take(recorded[0]);
    ASSERT_EQ(listener.handshake.state(), State::kInProgress);
    listener.take(recorded[2]);
    EXPECT_EQ(listener.handshake.state(), State::kRefused);
    EXPECT_EQ(listener.handshake.failure("peer").code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(listener.handshake.failure("peer").message(),
                HasSubstr("a recording of another handshake"));
  }
  {
    TappedHandshake connector(ControlRole::kConnector, key);
    connector.take(recorded[1]);
    EXPECT_EQ(connector.handshake.state(), State::kRefused);
    connector.take(recorded[3]);
    EXPECT_EQ(connector.handshake.state(), State::kRefused);
    EXPECT_EQ(connector.handshake.failure("peer").code(), StatusCode::kPermissionDenied);
  }
}

TEST(HandshakeTest, AListenerIsSilentUntilAStrangerHasProvedItself) {
  const JobSecret key = secret();
  TappedHandshake listener(ControlRole::kListener, key);
  EXPECT_TRUE(listener.next_output().empty());
  const std::vector<std::byte> hello = first_words(key);
  for (size_t at = 0; at + 1 < hello.size(); ++at) {
    listener.take(std::span(hello).subspan(at, 1));
    ASSERT_TRUE(listener.next_output().empty()) << at;
  }
  listener.take(std::span(hello).last(1));
  EXPECT_EQ(preface_in(listener.next_output()).kind, PrefaceKind::kWelcome);
}

TEST(HandshakeTest, EveryHandshakeIsFresh) {
  const JobSecret key = secret();
  EXPECT_NE(first_words(key), first_words(key));
}

TEST(HandshakeTest, VersionsThatDifferAreNamedOnBothSides) {
  const JobSecret key = secret();
  for (const auto& [ours, theirs] :
       {std::pair<uint16_t, uint16_t>{9, kControlProtocolVersion}, {kControlProtocolVersion, 9}}) {
    TappedHandshake connector(ControlRole::kConnector, key, ours);
    TappedHandshake listener(ControlRole::kListener, key, theirs);
    carry(connector, listener);
    EXPECT_EQ(listener.handshake.state(), State::kRefused);
    EXPECT_EQ(connector.handshake.state(), State::kRefusedByPeer);
    const auto text = [](const char* peer, int its, int own) {
      return fmt::format(
          "wrong version: peer {} speaks version {} of the control protocol, this is version {};",
          peer, its, own);
    };
    EXPECT_THAT(listener.handshake.failure("node-b:2").message(),
                HasSubstr(text("node-b:2", ours, theirs)));
    EXPECT_THAT(connector.handshake.failure("node-a:1").message(),
                HasSubstr(text("node-a:1", theirs, ours)));
    EXPECT_EQ(connector.handshake.failure("node-a:1").code(), StatusCode::kProtocolViolation);
  }
}

// Version 1 had no TLS: each side said hello with a nonce, and refused in the same layout.
TEST(HandshakeTest, PeersOfVersion1AreNamedAndAreToldTheVersion) {
  const JobSecret key = secret();
  Preface hello{.version = 1, .kind = PrefaceKind::kHello, .refusal = Refusal::kNone, .body = {}};
  hello.body.fill(std::byte{0x5a});
  {
    TappedHandshake listener(ControlRole::kListener, key);
    listener.take(encode_preface(hello));
    EXPECT_EQ(listener.handshake.state(), State::kRefused);
    EXPECT_THAT(listener.handshake.failure("peer").message(), HasSubstr("speaks version 1"));
    const Preface answer = preface_in(listener.next_output());
    EXPECT_EQ(answer.kind, PrefaceKind::kRefusal);
    EXPECT_EQ(answer.refusal, Refusal::kWrongVersion);
    EXPECT_EQ(answer.version, 2);
  }
  {
    TappedHandshake connector(ControlRole::kConnector, key);
    connector.take(encode_refusal(1, Refusal::kWrongVersion));
    EXPECT_EQ(connector.handshake.state(), State::kRefusedByPeer);
    EXPECT_THAT(connector.handshake.failure("peer").message(),
                HasSubstr("speaks version 1 of the control protocol, this is version 2"));
  }
}

TEST(HandshakeTest, ARefusalOfALaterVersionForAnUnknownReasonIsAboutTheVersion) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  connector.take(encode_refusal(9, static_cast<Refusal>(77)));
  EXPECT_EQ(connector.handshake.state(), State::kRefused);
  EXPECT_THAT(connector.handshake.failure("peer").message(), HasSubstr("speaks version 9"));
}

TEST(HandshakeTest, GarbageIsRefusedAtItsFirstWrongByte) {
  const JobSecret key = secret();
  for (std::string_view garbage : {"GET / HTTP/1.1\r\n", "V", "VERBENA ", "SSH-2.0-x\r\n"}) {
    TappedHandshake listener(ControlRole::kListener, key);
    listener.take(bytes_of(garbage));
    if (garbage == "V") {
      EXPECT_EQ(listener.handshake.state(), State::kInProgress);
      continue;
    }
    EXPECT_EQ(listener.handshake.state(), State::kRefused) << garbage;
    EXPECT_EQ(preface_in(listener.next_output()).refusal, Refusal::kNotAPeer);
    EXPECT_THAT(listener.handshake.failure("x").message(), HasSubstr("not a Verbena peer"));
  }
}

TEST(HandshakeTest, GarbageBehindAPrefaceIsRefused) {
  const JobSecret key = secret();
  {
    TappedHandshake listener(ControlRole::kListener, key);
    listener.take(encode_preface({}));
    listener.take(bytes_of("GET / HTTP/1.1\r\n"));
    EXPECT_EQ(listener.handshake.state(), State::kRefused);
    EXPECT_EQ(preface_in(listener.next_output()).refusal, Refusal::kNotAPeer);
    EXPECT_THAT(listener.handshake.failure("x").message(), HasSubstr("not a Verbena peer"));
  }
  {
    TappedHandshake connector(ControlRole::kConnector, key);
    connector.take(encode_preface({.kind = PrefaceKind::kWelcome}));
    connector.take(bytes_of("SSH-2.0-x\r\n"));
    EXPECT_EQ(connector.handshake.state(), State::kRefused);
    EXPECT_EQ(connector.handshake.failure("x").code(), StatusCode::kProtocolViolation);
  }
}

TEST(HandshakeTest, PrefacesOutOfTurnAreRefused) {
  const JobSecret key = secret();
  for (const Preface& wrong :
       {Preface{.kind = PrefaceKind::kWelcome}, Preface{.kind = PrefaceKind::kRefusal},
        Preface{.kind = static_cast<PrefaceKind>(2)}, Preface{.refusal = Refusal::kTooSlow},
        Preface{.body = {std::byte{1}}}}) {
    TappedHandshake listener(ControlRole::kListener, key);
    listener.take(encode_preface(wrong));
    EXPECT_EQ(listener.handshake.state(), State::kRefused);
    EXPECT_EQ(preface_in(listener.next_output()).refusal, Refusal::kNotAPeer);
  }
}

TEST(HandshakeTest, ARefusalFromOutsideReachesThePeer) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  TappedHandshake listener(ControlRole::kListener, key);
  listener.take(std::span<const std::byte>(connector.next_output()).first(kPrefaceBytes + 10));
  listener.handshake.refuse(Refusal::kTooSlow);
  connector.take(listener.next_output());
  EXPECT_EQ(connector.handshake.state(), State::kRefusedByPeer);
  EXPECT_EQ(connector.handshake.failure("peer").code(), StatusCode::kTimeout);
}

TEST(HandshakeTest, MissingDescriptorsAreNamedToThePeerForGood) {
  const JobSecret key = secret();
  TappedHandshake connector(ControlRole::kConnector, key);
  TappedHandshake listener(ControlRole::kListener, key);
  connector.next_output();
  listener.handshake.refuse(Refusal::kNoDescriptors);
  connector.take(listener.next_output());
  EXPECT_EQ(connector.handshake.state(), State::kRefusedByPeer);
  EXPECT_EQ(connector.handshake.failure("peer").code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(connector.handshake.failure("peer").message(), testing::HasSubstr("ulimit -n"));
  EXPECT_FALSE(connector.handshake.may_succeed_later());
}

// Whatever bit is altered on the way, both sides end up with an error, or with the same keys, where
// it was one that TLS gives no meaning: the version of the records before there are keys.
TEST(HandshakeTest, NoAlteredByteMatters) {
  const JobSecret key = secret();
  size_t survived = 0;
  for (int altered_message = 0; altered_message < 4; ++altered_message) {
    for (size_t byte = 0, count = 1; byte < count; ++byte) {
      TappedHandshake connector(ControlRole::kConnector, key);
      TappedHandshake listener(ControlRole::kListener, key);
      carry(connector, listener, SIZE_MAX, [&](int message, std::vector<std::byte>& bytes) {
        if (message != altered_message) return;
        count = bytes.size();
        bytes[byte] ^= static_cast<std::byte>(1 << (byte % 8));
      });
      if (connector.handshake.state() != State::kDone) {
        // What the listener has admitted by then is a connector that is right, and gone.
        ASSERT_TRUE(listener.handshake.state() != State::kDone || altered_message == 3) << byte;
        continue;
      }
      ASSERT_EQ(listener.handshake.state(), State::kDone) << altered_message << " " << byte;
      ASSERT_EQ(carry_data(connector, listener, bytes_of("data")), bytes_of("data"));
      ++survived;
    }
  }
  EXPECT_LE(survived, 4u);
}

TEST(HandshakeTest, RandomBytesNeverPass) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  const JobSecret key = secret();
  const std::vector<std::byte> hello = first_words(key);
  for (int round = 0; round < 2'000; ++round) {
    const bool connects = random.below(2) == 0;
    TappedHandshake side(connects ? ControlRole::kConnector : ControlRole::kListener, key);
    std::vector<std::byte> bytes;
    if (random.below(8) != 0) {  // most rounds get past the first checks
      const EncodedPreface preface =
          encode_preface({.kind = connects ? PrefaceKind::kWelcome : PrefaceKind::kHello});
      bytes.assign(preface.begin(), preface.end());
    }
    if (random.below(2) == 0) {
      bytes.insert(bytes.end(), hello.begin() + kPrefaceBytes, hello.end());
      for (uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
        bytes[random.below(bytes.size())] = static_cast<std::byte>(random.next());
      }
      bytes.resize(random.below(bytes.size() + 1));
    }
    for (uint64_t more = random.below(300); more > 0; --more) {
      bytes.push_back(static_cast<std::byte>(random.next()));
    }
    const size_t step = 1 + random.below(200);
    // Nobody reads once it has ended: further bytes would fill the socket, and wait for room.
    for (size_t at = 0; at < bytes.size() && side.handshake.state() == State::kInProgress;
         at += step) {
      side.take(std::span<const std::byte>(bytes).subspan(at, std::min(step, bytes.size() - at)));
      ASSERT_NE(side.handshake.state(), State::kDone);
    }
    if (side.handshake.state() == State::kRefused) {
      EXPECT_FALSE(side.handshake.failure("peer").ok());
    }
  }
}

}  // namespace
}  // namespace verbena
