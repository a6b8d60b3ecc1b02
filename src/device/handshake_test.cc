#include "src/device/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "src/base/runtime.h"

namespace verbena {
namespace {

using State = Handshake::State;
using testing::HasSubstr;

JobSecret secret_of(std::string_view text) { return *JobSecret::from_string(text); }
JobSecret right_secret() { return secret_of("the secret of this job"); }
JobSecret wrong_secret() { return secret_of("the secret of that job"); }

std::vector<std::byte> take_output(Handshake& from) {
  std::vector<std::byte> bytes(from.output().begin(), from.output().end());
  from.sent(bytes.size());
  return bytes;
}

// Gives `to` what it takes of `bytes`, `step` bytes at a time; how many it took.
size_t feed(Handshake& to, std::span<const std::byte> bytes, size_t step = SIZE_MAX) {
  size_t taken = 0;
  while (taken < bytes.size() && to.wanted_bytes() > 0) {
    const size_t now = std::min({step, bytes.size() - taken, to.wanted_bytes()});
    to.receive(bytes.subspan(taken, now));
    taken += now;
  }
  return taken;
}

// Carries messages to and fro until both are silent. `alter` may change what is carried.
void carry(Handshake& connector, Handshake& listener, size_t step = SIZE_MAX,
           const std::function<void(int, std::vector<std::byte>&)>& alter = nullptr) {
  int message = 0;
  while (!connector.output().empty() || !listener.output().empty()) {
    for (auto [from, to] : {std::pair(&connector, &listener), std::pair(&listener, &connector)}) {
      std::vector<std::byte> bytes = take_output(*from);
      if (bytes.empty()) continue;
      if (alter) alter(message, bytes);
      ++message;
      feed(*to, bytes, step);
    }
  }
}

HandshakeBytes as_message(std::span<const std::byte> bytes) {
  HandshakeBytes message{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), message.size()), message.begin());
  return message;
}

TEST(HandshakeTest, BothSidesWithTheSecretAgree) {
  const JobSecret key = right_secret();
  for (size_t step : {SIZE_MAX, size_t{1}, size_t{7}}) {
    Handshake connector(HandshakeRole::kConnector, key);
    Handshake listener(HandshakeRole::kListener, key);
    carry(connector, listener, step);
    EXPECT_EQ(connector.state(), State::kDone);
    EXPECT_EQ(listener.state(), State::kDone);
    EXPECT_EQ(connector.wanted_bytes(), 0u);
    EXPECT_EQ(listener.wanted_bytes(), 0u);
    EXPECT_TRUE(connector.failure("peer").ok());
  }
}

TEST(HandshakeTest, TheLayoutIsFixed) {
  HandshakeMessage message;
  message.version = 0x0201;
  message.kind = HandshakeKind::kRefusal;
  message.refusal = Refusal::kWrongSecret;
  for (size_t i = 0; i < message.body.size(); ++i) message.body[i] = static_cast<std::byte>(i);
  const HandshakeBytes bytes = encode_handshake(message);
  HandshakeBytes expected{};
  std::memcpy(expected.data(), "VERBENA\n\x01\x02\x03\x00\x03\x00\x00\x00", 16);
  for (size_t i = 0; i < 32; ++i) expected[16 + i] = static_cast<std::byte>(i);
  EXPECT_EQ(bytes, expected);

  HandshakeMessage decoded;
  ASSERT_TRUE(decode_handshake(bytes, &decoded));
  EXPECT_EQ(decoded.version, message.version);
  EXPECT_EQ(decoded.kind, message.kind);
  EXPECT_EQ(decoded.refusal, message.refusal);
  EXPECT_EQ(decoded.body, message.body);
  for (size_t i = 0; i < kHandshakeMagic.size(); ++i) {
    HandshakeBytes altered = bytes;
    altered[i] ^= std::byte{1};
    EXPECT_FALSE(decode_handshake(altered, &decoded));
  }
}

TEST(HandshakeTest, TheProofIsHmacSha256OverLabelAndBothHellos) {
  const JobSecret key = right_secret();
  HandshakeBytes first{};
  HandshakeBytes second{};
  first.fill(std::byte{0x11});
  second.fill(std::byte{0x22});
  std::string text = "verbena control connection: listener\n";
  text += std::string(first.size(), '\x11') + std::string(second.size(), '\x22');
  std::array<unsigned char, 32> expected{};
  unsigned expected_bytes = 0;
  ASSERT_NE(HMAC(EVP_sha256(), key.text().data(), static_cast<int>(key.text().size()),
                 reinterpret_cast<const unsigned char*>(text.data()), text.size(), expected.data(),
                 &expected_bytes),
            nullptr);
  const auto proof = handshake_proof(key, HandshakeRole::kListener, first, second);
  ASSERT_EQ(expected_bytes, proof.size());
  EXPECT_EQ(std::memcmp(proof.data(), expected.data(), proof.size()), 0);
  EXPECT_NE(proof, handshake_proof(key, HandshakeRole::kConnector, first, second));
}

TEST(HandshakeTest, AConnectorWithTheWrongSecretIsRefused) {
  const JobSecret right = right_secret();
  const JobSecret wrong = wrong_secret();
  Handshake connector(HandshakeRole::kConnector, wrong);
  Handshake listener(HandshakeRole::kListener, right);
  carry(connector, listener);
  EXPECT_EQ(listener.state(), State::kRefused);
  EXPECT_EQ(connector.state(), State::kRefusedByPeer);
  EXPECT_EQ(connector.failure("node-a:1").code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(connector.failure("node-a:1").message(), HasSubstr("wrong secret: node-a:1"));
  EXPECT_EQ(listener.failure("node-b:2").code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(listener.failure("node-b:2").message(), HasSubstr("wrong secret: node-b:2"));
}

TEST(HandshakeTest, AListenerWithoutTheSecretIsRefused) {
  const JobSecret key = right_secret();
  const JobSecret wrong = wrong_secret();
  Handshake connector(HandshakeRole::kConnector, key);
  const HandshakeBytes hello = as_message(take_output(connector));
  HandshakeMessage impostor_hello;
  impostor_hello.body.fill(std::byte{5});
  const HandshakeBytes listener_hello = encode_handshake(impostor_hello);
  feed(connector, listener_hello);
  take_output(connector);
  HandshakeMessage proof;
  proof.kind = HandshakeKind::kProof;
  proof.body = handshake_proof(wrong, HandshakeRole::kListener, hello, listener_hello);
  feed(connector, encode_handshake(proof));
  EXPECT_EQ(connector.state(), State::kRefused);
  EXPECT_EQ(connector.failure("peer").code(), StatusCode::kPermissionDenied);
}

TEST(HandshakeTest, AnImpostorCannotSendTheConnectorsProofBack) {
  const JobSecret key = right_secret();
  Handshake connector(HandshakeRole::kConnector, key);
  take_output(connector);
  HandshakeMessage hello;
  hello.body.fill(std::byte{5});
  feed(connector, encode_handshake(hello));
  const std::vector<std::byte> proof = take_output(connector);
  ASSERT_EQ(proof.size(), kHandshakeMessageBytes);
  feed(connector, proof);
  EXPECT_EQ(connector.state(), State::kRefused);
}

TEST(HandshakeTest, AMirrorIsNoPeer) {
  const JobSecret key = right_secret();
  Handshake connector(HandshakeRole::kConnector, key);
  feed(connector, take_output(connector));
  EXPECT_EQ(connector.state(), State::kRefused);
  EXPECT_EQ(connector.failure("peer").code(), StatusCode::kProtocolViolation);
}

TEST(HandshakeTest, ARecordedHandshakeCannotBePlayedBack) {
  const JobSecret key = right_secret();
  std::vector<std::vector<std::byte>> recorded;
  {
    Handshake connector(HandshakeRole::kConnector, key);
    Handshake listener(HandshakeRole::kListener, key);
    carry(connector, listener, SIZE_MAX,
          [&](int, std::vector<std::byte>& bytes) { recorded.push_back(bytes); });
    ASSERT_EQ(listener.state(), State::kDone);
    ASSERT_EQ(recorded.size(), 4u);
  }
  Handshake listener(HandshakeRole::kListener, key);
  feed(listener, recorded[0]);
  take_output(listener);
  feed(listener, recorded[2]);
  EXPECT_EQ(listener.state(), State::kRefused);
}

TEST(HandshakeTest, AListenerTellsAStrangerNothingToTryGuessesOn) {
  const JobSecret key = right_secret();
  Handshake listener(HandshakeRole::kListener, key);
  EXPECT_TRUE(listener.output().empty());
  Handshake connector(HandshakeRole::kConnector, key);
  feed(listener, take_output(connector));
  // A nonce, and no proof before the stranger's own.
  ASSERT_EQ(listener.output().size(), kHandshakeMessageBytes);
  HandshakeMessage hello;
  ASSERT_TRUE(decode_handshake(as_message(listener.output()), &hello));
  EXPECT_EQ(hello.kind, HandshakeKind::kHello);
}

TEST(HandshakeTest, NoncesAreFresh) {
  const JobSecret key = right_secret();
  Handshake first(HandshakeRole::kConnector, key);
  Handshake second(HandshakeRole::kConnector, key);
  EXPECT_NE(take_output(first), take_output(second));
}

TEST(HandshakeTest, VersionsThatDifferAreNamedOnBothSides) {
  const JobSecret key = right_secret();
  Handshake connector(HandshakeRole::kConnector, key, 3);
  Handshake listener(HandshakeRole::kListener, key, 1);
  carry(connector, listener);
  EXPECT_EQ(listener.state(), State::kRefused);
  EXPECT_EQ(connector.state(), State::kRefusedByPeer);
  EXPECT_THAT(listener.failure("node-b:2").message(),
              HasSubstr("peer node-b:2 speaks version 3 of the control protocol, this is "
                        "version 1"));
  EXPECT_THAT(connector.failure("node-a:1").message(),
              HasSubstr("peer node-a:1 speaks version 1 of the control protocol, this is "
                        "version 3"));
  EXPECT_EQ(connector.failure("node-a:1").code(), StatusCode::kProtocolViolation);
}

TEST(HandshakeTest, ARefusalOfALaterVersionForAnUnknownReasonIsAboutTheVersion) {
  const JobSecret key = right_secret();
  Handshake connector(HandshakeRole::kConnector, key);
  take_output(connector);
  HandshakeMessage refusal;
  refusal.version = 9;
  refusal.kind = HandshakeKind::kRefusal;
  refusal.refusal = static_cast<Refusal>(77);
  feed(connector, encode_handshake(refusal));
  EXPECT_EQ(connector.state(), State::kRefused);
  EXPECT_THAT(connector.failure("peer").message(), HasSubstr("speaks version 9"));
}

TEST(HandshakeTest, GarbageIsRefusedAtItsFirstWrongByte) {
  const JobSecret key = right_secret();
  for (std::string_view garbage : {"GET / HTTP/1.1\r\n", "V", "VERBENA ", "SSH-2.0-x\r\n"}) {
    Handshake listener(HandshakeRole::kListener, key);
    feed(listener, std::as_bytes(std::span(garbage)));
    if (garbage == "V") {
      EXPECT_EQ(listener.state(), State::kInProgress);
      continue;
    }
    EXPECT_EQ(listener.state(), State::kRefused) << garbage;
    EXPECT_EQ(listener.wanted_bytes(), 0u);
    HandshakeMessage refusal;
    ASSERT_TRUE(decode_handshake(as_message(listener.output()), &refusal));
    EXPECT_EQ(refusal.kind, HandshakeKind::kRefusal);
    EXPECT_EQ(refusal.refusal, Refusal::kNotAPeer);
    EXPECT_THAT(listener.failure("x").message(), HasSubstr("not a Verbena peer"));
  }
}

TEST(HandshakeTest, MessagesOutOfTurnAreRefused) {
  const JobSecret key = right_secret();
  HandshakeMessage proof;
  proof.kind = HandshakeKind::kProof;
  {
    Handshake listener(HandshakeRole::kListener, key);
    feed(listener, encode_handshake(proof));
    EXPECT_EQ(listener.state(), State::kRefused);
  }
  {
    Handshake listener(HandshakeRole::kListener, key);
    HandshakeMessage hello;
    feed(listener, encode_handshake(hello));
    ASSERT_EQ(listener.state(), State::kInProgress);
    feed(listener, encode_handshake(hello));
    EXPECT_EQ(listener.state(), State::kRefused);
  }
  {
    Handshake listener(HandshakeRole::kListener, key);
    HandshakeMessage unknown;
    unknown.kind = static_cast<HandshakeKind>(99);
    feed(listener, encode_handshake(unknown));
    EXPECT_EQ(listener.state(), State::kRefused);
  }
}

TEST(HandshakeTest, ARefusalFromOutsideReachesThePeer) {
  const JobSecret key = right_secret();
  Handshake connector(HandshakeRole::kConnector, key);
  Handshake listener(HandshakeRole::kListener, key);
  feed(listener, take_output(connector));
  take_output(listener);
  listener.refuse(Refusal::kTooSlow);
  feed(connector, take_output(listener));
  EXPECT_EQ(connector.state(), State::kRefusedByPeer);
  EXPECT_EQ(connector.failure("peer").code(), StatusCode::kTimeout);
}

// Whatever single bit is altered on the way, the connector never takes the handshake for good, nor
// does the listener unless all that it received was right.
TEST(HandshakeTest, NoAlteredBitPasses) {
  const JobSecret key = right_secret();
  for (int altered_message = 0; altered_message < 4; ++altered_message) {
    for (size_t bit = 0; bit < 8 * kHandshakeMessageBytes; ++bit) {
      Handshake connector(HandshakeRole::kConnector, key);
      Handshake listener(HandshakeRole::kListener, key);
      carry(connector, listener, SIZE_MAX, [&](int message, std::vector<std::byte>& bytes) {
        if (message == altered_message) bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
      });
      ASSERT_NE(connector.state(), State::kDone) << altered_message << " " << bit;
      if (altered_message < 3) {
        ASSERT_NE(listener.state(), State::kDone) << altered_message << " " << bit;
      }
    }
  }
}

TEST(HandshakeTest, RandomBytesNeverPass) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  const JobSecret key = right_secret();
  for (int round = 0; round < 20'000; ++round) {
    const auto role = random.below(2) == 0 ? HandshakeRole::kConnector : HandshakeRole::kListener;
    Handshake handshake(role, key);
    for (int message = 0; message < 3 && handshake.wanted_bytes() > 0; ++message) {
      HandshakeBytes bytes;
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
      // Most rounds get past the first checks.
      if (random.below(8) != 0) {
        std::memcpy(bytes.data(), kHandshakeMagic.data(), kHandshakeMagic.size());
      }
      if (random.below(8) != 0) {
        bytes[8] = std::byte{1};
        bytes[9] = std::byte{0};
      }
      if (random.below(8) != 0) {
        bytes[10] = static_cast<std::byte>(random.below(4));
        bytes[11] = std::byte{0};
      }
      if (random.below(2) != 0) std::fill_n(bytes.begin() + 12, 4, std::byte{0});
      feed(handshake, bytes, 1 + random.below(kHandshakeMessageBytes));
      ASSERT_NE(handshake.state(), State::kDone);
      ASSERT_LE(handshake.output().size(), 2 * kHandshakeMessageBytes);
      if (random.below(2) == 0) take_output(handshake);
    }
    if (handshake.state() != State::kInProgress) {
      EXPECT_FALSE(handshake.failure("peer").ok());
    }
  }
}

}  // namespace
}  // namespace verbena
