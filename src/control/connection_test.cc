#include "verbena/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "src/base/log.h"
#include "src/base/runtime.h"
#include "src/base/wire.h"
#include "src/control/handshake.h"
#include "src/control/tcp_socket.h"

namespace verbena {
namespace {

using testing::HasSubstr;

// Long enough that no test that passes waits for it.
constexpr int64_t kLongNs = 60'000'000'000;
constexpr int64_t kHourNs = 3'600'000'000'000;

JobSecret secret() { return *JobSecret::from_string("the secret of this job"); }
JobSecret other_secret() { return *JobSecret::from_string("the secret of that job"); }

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A program that speaks TCP, but not the control protocol.
class Stranger {
 public:
  explicit Stranger(uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  explicit Stranger(FileDescriptor socket) : socket_(std::move(socket)), connected_(true) {}

  bool connected() const { return connected_; }
  // False where the other side has closed already.
  bool say(std::span<const std::byte> bytes) {
    return ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool say(std::string_view text) { return say(std::as_bytes(std::span(text))); }
  // The next `size` bytes, or what came before the other side closed.
  std::vector<std::byte> hear(size_t size) {
    std::vector<std::byte> bytes(size);
    size_t heard = 0;
    while (heard < size) {
      const ssize_t got = recv(socket_.get(), bytes.data() + heard, size - heard, 0);
      if (got <= 0) break;
      heard += static_cast<size_t>(got);
    }
    bytes.resize(heard);
    return bytes;
  }
  std::optional<HandshakeMessage> hear_message() {
    const std::vector<std::byte> heard = hear(kHandshakeMessageBytes);
    HandshakeBytes bytes;
    HandshakeMessage message;
    if (heard.size() != bytes.size()) return std::nullopt;
    std::copy(heard.begin(), heard.end(), bytes.begin());
    if (!decode_handshake(bytes, &message)) return std::nullopt;
    return message;
  }
  bool other_side_is_silent() const {
    std::byte byte;
    return recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN;
  }
  void reset_on_close() {
    const linger now{1, 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
  }
  void close() { socket_.reset(); }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
};

// A port that is taken but where nobody listens: whoever connects is refused, and a ControlListener
// can still have it.
class QuietPort {
 public:
  QuietPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    // Linux shares a port between sockets that allow it as long as none of them listens.
    const int on = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  uint16_t port() const { return local_address(socket_.get()).port(); }

 private:
  FileDescriptor socket_;
};

// A port where anything may listen: a listener of its own, for playing a peer byte by byte.
class BareListener {
 public:
  BareListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
  }
  uint16_t port() const { return local_address(socket_.get()).port(); }
  Stranger accept() {
    return Stranger(FileDescriptor(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }

 private:
  FileDescriptor socket_;
};

// Both ends of a connection inside this process.
struct Pair {
  ControlConnection here;
  ControlConnection there;
};

Pair connect_pair(ControlListener& listener, const char* host = "127.0.0.1") {
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect(host, listener.port(), secret(), kLongNs);
  });
  Result<ControlConnection> accepted = listener.accept(kLongNs);
  thread.join();
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
  return {std::move(accepted).value(), std::move(*connected).value()};
}

Pair connect_pair() {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  return connect_pair(listener);
}

// A connection whose other end is in the hands of the test, byte by byte.
struct RawPair {
  ControlConnection connection;
  Stranger raw;
};

RawPair connect_raw() {
  const JobSecret key = secret();
  BareListener listener;
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), key, kLongNs);
  });
  Stranger raw = listener.accept();
  Handshake handshake(HandshakeRole::kListener, key);
  while (handshake.state() == Handshake::State::kInProgress) {
    handshake.receive(raw.hear(handshake.wanted_bytes()));
    raw.say(handshake.output());
    handshake.sent(handshake.output().size());
  }
  thread.join();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
  return {std::move(*connected).value(), std::move(raw)};
}

std::vector<std::byte> frame_of(uint32_t magic, uint32_t announced, std::string_view body) {
  WireWriter writer;
  writer.u32(magic);
  writer.u32(announced);
  writer.raw(std::as_bytes(std::span(body)));
  return {writer.bytes().begin(), writer.bytes().end()};
}
constexpr uint32_t kMagic = 0x31464256;

// Accepts until the listener is destroyed, so that strangers get their answers.
class AcceptingListener {
 public:
  explicit AcceptingListener(const ControlListenerOptions& options = {})
      : listener_(*ControlListener::listen("127.0.0.1", 0, secret(), options)),
        port_(listener_.port()),
        thread_(start_thread("listener", [this] {
          while (!stop_.load()) {
            Result<ControlConnection> accepted = listener_.accept(10'000'000);
            if (accepted.ok()) accepted_.push_back(std::move(accepted).value());
          }
        })) {}
  ~AcceptingListener() { stop(); }
  void stop() {
    stop_.store(true);
    thread_.join();
  }
  uint16_t port() const { return port_; }
  // After stop().
  const std::vector<ControlConnection>& accepted() const { return accepted_; }

 private:
  std::atomic<bool> stop_{false};
  ControlListener listener_;
  uint16_t port_;
  std::vector<ControlConnection> accepted_;
  Thread thread_;
};

class ConnectionTest : public testing::Test {
 protected:
  // Refusals are expected here; they would fill the test's output.
  void SetUp() override {
    level_ = log_level();
    set_log_level(LogLevel::kOff);
  }
  void TearDown() override { set_log_level(level_); }

 private:
  LogLevel level_ = LogLevel::kWarning;
};

TEST_F(ConnectionTest, CarriesFramesInOrderBothWays) {
  Pair pair = connect_pair();
  ASSERT_TRUE(pair.here.send(bytes_of("first")).ok());
  ASSERT_TRUE(pair.here.send({}).ok());
  ASSERT_TRUE(pair.here.send(bytes_of("third")).ok());
  ASSERT_TRUE(pair.there.send(bytes_of("back")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("first"));
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of(""));
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("third"));
  EXPECT_EQ(*pair.here.receive(kLongNs), bytes_of("back"));
  EXPECT_THAT(pair.here.peer_name(), testing::StartsWith("127.0.0.1:"));
}

TEST_F(ConnectionTest, CarriesTheLargestFrameAndRefusesALargerOne) {
  Pair pair = connect_pair();
  std::vector<std::byte> frame(kMaxControlFrameBytes);
  Random random(1);
  for (std::byte& byte : frame) byte = static_cast<std::byte>(random.next());
  Thread sender = start_thread("sender", [&] { EXPECT_TRUE(pair.here.send(frame).ok()); });
  EXPECT_EQ(*pair.there.receive(kLongNs), frame);
  sender.join();
  frame.push_back(std::byte{0});
  const Status status = pair.here.send(frame);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("1048577"));
  EXPECT_THAT(status.message(), HasSubstr("1048576"));
  // What was not sent did not break anything.
  EXPECT_TRUE(pair.here.send(bytes_of("still fine")).ok());
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("still fine"));
}

TEST_F(ConnectionTest, ReceiveTimesOutAndKeepsAFrameThatArrivedInPart) {
  RawPair pair = connect_raw();
  EXPECT_EQ(pair.connection.receive(0).status().code(), StatusCode::kTimeout);
  const std::vector<std::byte> frame = frame_of(kMagic, 6, "abcdef");
  for (size_t at = 0; at + 1 < frame.size(); ++at) {
    pair.raw.say(std::span(frame).subspan(at, 1));
    EXPECT_EQ(pair.connection.receive(1'000'000).status().code(), StatusCode::kTimeout);
  }
  pair.raw.say(std::span(frame).last(1));
  EXPECT_EQ(*pair.connection.receive(kLongNs), bytes_of("abcdef"));
}

TEST_F(ConnectionTest, ASenderWhosePeerDoesNotReadTimesOut) {
  RawPair pair = connect_raw();
  const std::vector<std::byte> frame(kMaxControlFrameBytes);
  Status status;
  // Until the buffers of both sockets are full.
  for (int i = 0; i < 1000 && status.ok(); ++i) status = pair.connection.send(frame, 1'000'000);
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_EQ(pair.connection.send({}).code(), StatusCode::kTimeout);
}

TEST_F(ConnectionTest, APeerThatReadsLateIsNotTakenForADeadHost) {
  Pair pair = connect_pair();
  const std::vector<std::byte> frame(kMaxControlFrameBytes);
  constexpr int kFrames = 16;  // more than the buffers of both sockets
  Status sent;
  Thread sender = start_thread("sender", [&] {
    for (int i = 0; i < kFrames && sent.ok(); ++i) sent = pair.here.send(frame);
  });
  sleep_ns(kHostSilenceLimitNs + 2'000'000'000);
  EXPECT_FALSE(pair.there.peer_closed());
  for (int i = 0; i < kFrames; ++i) {
    const Result<std::vector<std::byte>> received = pair.there.receive(kLongNs);
    ASSERT_TRUE(received.ok()) << received.status().message();
    EXPECT_EQ(received->size(), frame.size());
  }
  sender.join();
  EXPECT_TRUE(sent.ok()) << sent.message();
}

TEST_F(ConnectionTest, ExchangesValuesOfBothSides) {
  struct Endpoint {
    uint32_t queue_pair_number;
    uint64_t address;
  };
  Pair pair = connect_pair();
  std::optional<Result<Endpoint>> from_here;
  Thread thread = start_thread("there", [&] {
    from_here = pair.there.exchange<Endpoint>(7, {2, 20}, kLongNs);
  });
  const Result<Endpoint> from_there = pair.here.exchange<Endpoint>(7, {1, 10}, kLongNs);
  thread.join();
  ASSERT_TRUE(from_there.ok()) << from_there.status().message();
  EXPECT_EQ(from_there->queue_pair_number, 2u);
  EXPECT_EQ(from_there->address, 20u);
  ASSERT_TRUE(from_here->ok());
  EXPECT_EQ((*from_here)->address, 10u);
}

TEST_F(ConnectionTest, AValueOfAnotherTypeIsAnError) {
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send_value<uint32_t>(1, 5).ok());
    const Result<uint32_t> value = pair.there.receive_value<uint32_t>(2, kLongNs);
    EXPECT_EQ(value.status().code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(value.status().message(), HasSubstr("tag 1 and 4 bytes, expected was tag 2"));
    EXPECT_FALSE(pair.there.receive(0).ok());
  }
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send_value<uint32_t>(1, 5).ok());
    EXPECT_EQ(pair.there.receive_value<uint64_t>(1, kLongNs).status().code(),
              StatusCode::kProtocolViolation);
  }
  {
    Pair pair = connect_pair();
    ASSERT_TRUE(pair.here.send(bytes_of("ab")).ok());
    EXPECT_EQ(pair.there.receive_value<uint64_t>(1, kLongNs).status().code(),
              StatusCode::kProtocolViolation);
  }
}

TEST_F(ConnectionTest, AClosedPeerIsNoticedAndItsLastFrameIsNotLost) {
  Pair pair = connect_pair();
  EXPECT_FALSE(pair.there.peer_closed());
  ASSERT_TRUE(pair.here.send(bytes_of("last words")).ok());
  EXPECT_FALSE(pair.there.peer_closed());
  { const ControlConnection closed = std::move(pair.here); }
  while (!pair.there.peer_closed()) sleep_ns(100'000);
  EXPECT_EQ(*pair.there.receive(kLongNs), bytes_of("last words"));
  const Status status = pair.there.receive(kLongNs).status();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("closed the connection"));
  EXPECT_TRUE(pair.there.peer_closed());
}

TEST_F(ConnectionTest, SendingToAPeerThatIsGoneIsAnErrorAndNoSignal) {
  Pair pair = connect_pair();
  { const ControlConnection closed = std::move(pair.here); }
  Status status;
  while (status.ok()) status = pair.there.send(bytes_of("anybody there?"));
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair.there.peer_closed());
}

TEST_F(ConnectionTest, APeerThatResetsTheConnectionIsGone) {
  RawPair pair = connect_raw();
  pair.raw.reset_on_close();
  pair.raw.close();
  EXPECT_EQ(pair.connection.receive(kLongNs).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(pair.connection.peer_closed());
}

TEST_F(ConnectionTest, APeerThatClosesInTheMiddleOfAFrameIsNamed) {
  const std::vector<std::byte> frame = frame_of(kMagic, 100, "only this");
  for (size_t cut : {size_t{1}, size_t{7}, size_t{8}, frame.size()}) {
    RawPair pair = connect_raw();
    pair.raw.say(std::span(frame).first(cut));
    pair.raw.close();
    const Status status = pair.connection.receive(kLongNs).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("in the middle of a frame")) << cut;
    EXPECT_EQ(pair.connection.receive(kLongNs).status().message(), status.message());
  }
}

TEST_F(ConnectionTest, AnOversizeFrameIsRefusedBeforeItsBytesAreWaitedFor) {
  for (uint32_t announced : {uint32_t{kMaxControlFrameBytes} + 1, uint32_t{0x7fffffff}, ~0u}) {
    RawPair pair = connect_raw();
    pair.raw.say(frame_of(kMagic, announced, ""));
    const Status status = pair.connection.receive(kLongNs).status();
    EXPECT_EQ(status.code(), StatusCode::kProtocolViolation);
    EXPECT_THAT(status.message(), HasSubstr(std::to_string(announced)));
    EXPECT_FALSE(pair.connection.receive(0).ok());
  }
}

TEST_F(ConnectionTest, BytesThatAreNoFrameAreRefused) {
  for (const std::vector<std::byte>& bytes :
       {bytes_of("HTTP/1.1 400 Bad Request\r\n"), frame_of(kMagic ^ 1, 3, "abc")}) {
    RawPair pair = connect_raw();
    pair.raw.say(bytes);
    EXPECT_EQ(pair.connection.receive(kLongNs).status().code(), StatusCode::kProtocolViolation);
  }
}

TEST_F(ConnectionTest, TheWrongSecretIsNamedOnBothSides) {
  set_log_level(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  {
    AcceptingListener listener;
    const Result<ControlConnection> refused =
        ControlConnection::connect("127.0.0.1", listener.port(), other_secret(), kLongNs);
    EXPECT_EQ(refused.status().code(), StatusCode::kPermissionDenied);
    EXPECT_THAT(refused.status().message(), HasSubstr("wrong secret"));
    listener.stop();
    EXPECT_TRUE(listener.accepted().empty());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("verbena: warning: 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("wrong secret: 127.0.0.1:"));
}

TEST_F(ConnectionTest, AnotherVersionIsNamedToTheStranger) {
  AcceptingListener listener;
  Stranger stranger(listener.port());
  const JobSecret key = secret();
  Handshake handshake(HandshakeRole::kConnector, key, kControlProtocolVersion + 2);
  stranger.say(handshake.output());
  const std::optional<HandshakeMessage> answer = stranger.hear_message();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, HandshakeKind::kRefusal);
  EXPECT_EQ(answer->refusal, Refusal::kWrongVersion);
  EXPECT_EQ(answer->version, kControlProtocolVersion);
}

TEST_F(ConnectionTest, AListenerOfAnotherVersionIsNamedToTheConnector) {
  const JobSecret key = secret();
  BareListener listener;
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), key, kLongNs);
  });
  Stranger raw = listener.accept();
  Handshake handshake(HandshakeRole::kListener, key, 3);
  handshake.receive(raw.hear(handshake.wanted_bytes()));
  raw.say(handshake.output());
  thread.join();
  EXPECT_EQ(connected->status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(connected->status().message(), HasSubstr("speaks version 3"));
  EXPECT_THAT(connected->status().message(), HasSubstr("this is version 1"));
}

TEST_F(ConnectionTest, AnotherProgramsPortIsNamed) {
  BareListener listener;
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs);
  });
  Stranger raw = listener.accept();
  raw.say("SSH-2.0-OpenSSH_9.2\r\n");
  thread.join();
  EXPECT_EQ(connected->status().code(), StatusCode::kProtocolViolation);
  EXPECT_THAT(connected->status().message(), HasSubstr("not a Verbena peer"));
  EXPECT_THAT(connected->status().message(), HasSubstr("in use by another program"));
}

TEST_F(ConnectionTest, GarbageIsAnsweredAndTheListenerGoesOn) {
  AcceptingListener listener;
  Stranger stranger(listener.port());
  stranger.say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::optional<HandshakeMessage> answer = stranger.hear_message();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kNotAPeer);
  EXPECT_TRUE(stranger.hear(1).empty());
  EXPECT_TRUE(ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs).ok());
}

// The silent one could stay for an hour: a listener that waited for it would not get to the genuine
// peer.
TEST_F(ConnectionTest, SilentStrangersDoNotBlockAGenuinePeer) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  Stranger silent(listener.port());
  Stranger half_said(listener.port());
  half_said.say("VERB");
  const Pair pair = connect_pair(listener);
  EXPECT_TRUE(silent.other_side_is_silent());
  EXPECT_TRUE(half_said.other_side_is_silent());
}

TEST_F(ConnectionTest, ASilentStrangerIsDropped) {
  ControlListenerOptions options;
  options.handshake_timeout_ns = 1'000'000;
  AcceptingListener listener(options);
  Stranger silent(listener.port());
  const std::optional<HandshakeMessage> answer = silent.hear_message();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kTooSlow);
  EXPECT_TRUE(silent.hear(1).empty());
}

TEST_F(ConnectionTest, AStrangerThatStaysAfterItsRefusalIsClosed) {
  AcceptingListener listener;
  Stranger stranger(listener.port());
  stranger.say("garbage");
  ASSERT_TRUE(stranger.hear_message().has_value());
  EXPECT_TRUE(stranger.hear(1).empty());
  // Talking on does not keep its place: the answer to more is a reset in the end.
  while (stranger.say("more")) sleep_ns(1'000'000);
}

TEST_F(ConnectionTest, MoreSilentStrangersThanPlacesDoNotBlockAGenuinePeer) {
  ControlListenerOptions options;
  options.max_pending = 4;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  std::vector<Stranger> strangers;
  for (int i = 0; i < 10; ++i) {
    strangers.emplace_back(listener.port());
    ASSERT_TRUE(strangers.back().connected());
  }
  const Pair pair = connect_pair(listener);
  const std::optional<HandshakeMessage> answer = strangers.front().hear_message();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->refusal, Refusal::kCrowded);
}

TEST_F(ConnectionTest, ManyPeersConnectAtOnce) {
  constexpr int kPeers = 24;
  ControlListenerOptions options;
  options.max_pending = 4;
  options.handshake_timeout_ns = kHourNs;
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret(), options);
  std::vector<Thread> threads;
  threads.reserve(kPeers);
  std::atomic<int> good{0};
  for (int i = 0; i < kPeers; ++i) {
    threads.push_back(start_thread("peer", [&, i] {
      Result<ControlConnection> connection =
          ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs);
      if (!connection.ok()) return;
      if (!connection->send_value<int>(1, i).ok()) return;
      const Result<int> answer = connection->receive_value<int>(2, kLongNs);
      if (answer.ok() && *answer == 2 * i) ++good;
    }));
  }
  std::vector<Thread> servers;
  servers.reserve(kPeers);
  for (int i = 0; i < kPeers; ++i) {
    Result<ControlConnection> accepted = listener.accept(kLongNs);
    ASSERT_TRUE(accepted.ok()) << accepted.status().message();
    servers.push_back(start_thread(
        "server", [connection = std::make_shared<ControlConnection>(std::move(accepted).value())] {
          const Result<int> value = connection->receive_value<int>(1, kLongNs);
          ASSERT_TRUE(value.ok());
          EXPECT_TRUE(connection->send_value<int>(2, 2 * *value).ok());
        }));
  }
  threads.clear();
  servers.clear();
  EXPECT_EQ(good.load(), kPeers);
}

TEST_F(ConnectionTest, AcceptTimesOut) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  EXPECT_EQ(listener.accept(0).status().code(), StatusCode::kTimeout);
  EXPECT_EQ(listener.accept(2'000'000).status().code(), StatusCode::kTimeout);
}

TEST_F(ConnectionTest, APortInUseIsNamed) {
  const ControlListener first = *ControlListener::listen("127.0.0.1", 0, secret());
  const Result<ControlListener> second =
      ControlListener::listen("127.0.0.1", first.port(), secret());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr("port in use"));
  EXPECT_THAT(second.status().message(), HasSubstr(first.name()));
}

TEST_F(ConnectionTest, BadAddressesAreNamed) {
  // 192.0.2.0/24 is for documentation: no host has it.
  EXPECT_EQ(ControlListener::listen("192.0.2.1", 0, secret()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ControlListener::listen("", 0, secret()).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ControlConnection::connect("no such host", 1, secret(), 0).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(ControlConnection::connect("127.0.0.1", 0, secret(), 0).status().code(),
            StatusCode::kInvalidArgument);
  ControlListenerOptions options;
  options.max_pending = 0;
  EXPECT_EQ(ControlListener::listen("127.0.0.1", 0, secret(), options).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(ConnectionTest, ConnectingWhereNobodyListensTimesOutWithTheReason) {
  const QuietPort quiet;
  const Status status =
      ControlConnection::connect("127.0.0.1", quiet.port(), secret(), 500'000'000).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("Connection refused"));
}

TEST_F(ConnectionTest, ConnectingToASilentPortTimesOutWithTheReason) {
  const BareListener silent;
  const Status status =
      ControlConnection::connect("127.0.0.1", silent.port(), secret(), 500'000'000).status();
  EXPECT_EQ(status.code(), StatusCode::kTimeout);
  EXPECT_THAT(status.message(), HasSubstr("did not answer"));
}

TEST_F(ConnectionTest, ConnectingWaitsForTheListener) {
  const QuietPort quiet;
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", quiet.port(), secret(), kLongNs);
  });
  // However this race goes, the connection must come about; most often a few tries fail before.
  sleep_ns(20'000'000);
  Result<ControlListener> listener = ControlListener::listen("127.0.0.1", quiet.port(), secret());
  ASSERT_TRUE(listener.ok()) << listener.status().message();
  EXPECT_TRUE(listener->accept(kLongNs).ok());
  thread.join();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
}

TEST_F(ConnectionTest, ConnectingOutlastsAListenerThatDiesDuringTheHandshake) {
  BareListener listener;
  const JobSecret key = secret();
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), key, kLongNs);
  });
  for (int i = 0; i < 3; ++i) listener.accept().hear(kHandshakeMessageBytes);
  Stranger raw = listener.accept();
  Handshake handshake(HandshakeRole::kListener, key);
  while (handshake.state() == Handshake::State::kInProgress) {
    handshake.receive(raw.hear(handshake.wanted_bytes()));
    raw.say(handshake.output());
    handshake.sent(handshake.output().size());
  }
  thread.join();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
}

TEST_F(ConnectionTest, SpeaksIpv6) {
  Result<ControlListener> listener = ControlListener::listen("::1", 0, secret());
  if (!listener.ok()) GTEST_SKIP() << "no IPv6 here: " << listener.status().message();
  EXPECT_THAT(listener->name(), testing::StartsWith("[::1]:"));
  Pair pair = connect_pair(*listener, "::1");
  EXPECT_THAT(pair.there.peer_name(), testing::StartsWith("[::1]:"));
  connect_pair(*listener, "[::1]");
}

TEST_F(ConnectionTest, FindsTheRightAddressOfAName) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  connect_pair(listener, "localhost");
}

TEST_F(ConnectionTest, DescriptorsAreNotInheritedAndSmallFramesLeaveAtOnce) {
  const Pair pair = connect_pair();
  for (const ControlConnection* connection : {&pair.here, &pair.there}) {
    EXPECT_TRUE(fcntl(connection->descriptor(), F_GETFD) & FD_CLOEXEC);
    int no_delay = 0;
    socklen_t size = sizeof(no_delay);
    getsockopt(connection->descriptor(), IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
    EXPECT_NE(no_delay, 0);
  }
}

TEST_F(ConnectionTest, SignalsDoNotEndAWait) {
  struct sigaction action {};
  struct sigaction before {};
  static std::atomic<int> signals{0};
  action.sa_handler = [](int) { ++signals; };
  sigaction(SIGUSR1, &action, &before);
  Pair pair = connect_pair();
  const pthread_t waiting = pthread_self();
  Thread thread = start_thread("signals", [&] {
    for (int i = 0; i < 20; ++i) {
      pthread_kill(waiting, SIGUSR1);
      sleep_ns(1'000'000);
    }
    EXPECT_TRUE(pair.there.send(bytes_of("after the signals")).ok());
  });
  EXPECT_EQ(*pair.here.receive(kLongNs), bytes_of("after the signals"));
  thread.join();
  EXPECT_GT(signals.load(), 0);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(ConnectionTest, RefusalsInTheLogAreLimited) {
  set_log_level(LogLevel::kWarning);
  constexpr uint64_t kLines = 5;  // every 5 s
  constexpr uint64_t kPeriodNs = 5'000'000'000;
  testing::internal::CaptureStderr();
  const uint64_t start_ns = now_ns();
  {
    AcceptingListener listener;
    for (int i = 0; i < 40; ++i) {
      Stranger stranger(listener.port());
      stranger.say("garbage\nverbena: error: a line that the stranger made up\n");
      EXPECT_TRUE(stranger.hear_message().has_value());
    }
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const auto lines = static_cast<uint64_t>(std::count(log.begin(), log.end(), '\n'));
  EXPECT_GE(lines, 1u);
  EXPECT_LE(lines, kLines * (1 + (now_ns() - start_ns) / kPeriodNs));
  EXPECT_THAT(log, HasSubstr("not a Verbena peer"));
  EXPECT_THAT(log, testing::Not(HasSubstr("made up")));
}

TEST_F(ConnectionTest, RandomStrangersAreSurvived) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  ControlListenerOptions options;
  options.max_pending = 8;
  AcceptingListener listener(options);
  const JobSecret key = secret();
  std::vector<Stranger> kept;
  for (int i = 0; i < 200; ++i) {
    Stranger stranger(listener.port());
    ASSERT_TRUE(stranger.connected());
    // Often a good start, cut or altered somewhere.
    std::vector<std::byte> bytes;
    Handshake handshake(HandshakeRole::kConnector, key);
    if (random.below(3) != 0) {
      bytes.assign(handshake.output().begin(), handshake.output().end());
    }
    const size_t more = random.below(200);
    for (size_t at = 0; at < more; ++at) bytes.push_back(static_cast<std::byte>(random.next()));
    if (!bytes.empty() && random.below(2) == 0) {
      bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1 + random.below(255));
    }
    bytes.resize(random.below(bytes.size() + 1));
    stranger.say(bytes);
    switch (random.below(4)) {
      case 0:
        kept.push_back(std::move(stranger));
        break;
      case 1:
        stranger.reset_on_close();
        break;
      default:
        break;
    }
    if (i % 20 == 0) {
      EXPECT_TRUE(ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs).ok());
    }
  }
  listener.stop();
  EXPECT_EQ(listener.accepted().size(), 10u);
}

TEST_F(ConnectionTest, RandomFramesAreSurvived) {
  const uint64_t seed = run_seed();
  SCOPED_TRACE("VERBENA_SEED=" + std::to_string(seed));
  Random random(seed);
  for (int round = 0; round < 50; ++round) {
    RawPair pair = connect_raw();
    std::vector<std::byte> bytes;
    const size_t frames = random.below(4);
    size_t good_frames = 0;
    for (; good_frames < frames; ++good_frames) {
      const std::string body(random.below(300), 'x');
      const std::vector<std::byte> frame =
          frame_of(kMagic, static_cast<uint32_t>(body.size()), body);
      bytes.insert(bytes.end(), frame.begin(), frame.end());
    }
    const size_t garbage = 1 + random.below(100);
    for (size_t i = 0; i < garbage; ++i) bytes.push_back(static_cast<std::byte>(random.next()));
    pair.raw.say(bytes);
    pair.raw.close();
    Status status;
    size_t received = 0;
    while (status.ok()) {
      const Result<std::vector<std::byte>> frame = pair.connection.receive(kLongNs);
      status = frame.status();
      if (frame.ok()) ++received;
    }
    EXPECT_NE(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(received, good_frames);
  }
}

TEST_F(ConnectionTest, RunningOutOfDescriptorsIsNamedAndPasses) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  Stranger stranger(listener.port());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // No descriptor beyond those that are open.
  const int probe = dup(0);
  ASSERT_GE(probe, 0);
  close(probe);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(probe);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const Status status = listener.accept(kLongNs).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), StatusCode::kLimitExceeded);
  EXPECT_THAT(status.message(), HasSubstr("ulimit -n"));
  connect_pair(listener);
}

// The system asks for a descriptor before it looks whether anybody waits: that is no reason to send
// away the one who came.
TEST_F(ConnectionTest, TheLastDescriptorIsEnoughForAPeer) {
  ControlListener listener = *ControlListener::listen("127.0.0.1", 0, secret());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // One for each side.
  const int first = dup(0);
  const int second = dup(0);
  ASSERT_GT(second, first);
  close(first);
  close(second);
  rlimit two = before;
  two.rlim_cur = static_cast<rlim_t>(second) + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &two), 0);
  std::optional<Result<ControlConnection>> connected;
  Thread thread = start_thread("connector", [&] {
    connected = ControlConnection::connect("127.0.0.1", listener.port(), secret(), kLongNs);
  });
  const Result<ControlConnection> accepted = listener.accept(kLongNs);
  thread.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(accepted.ok()) << accepted.status().message();
  EXPECT_TRUE(connected->ok()) << connected->status().message();
}

class JobSecretTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/verbena-secret-test-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string path(const char* name) const { return directory_ + "/" + name; }
  void write(const std::string& file, std::string_view text, mode_t mode) const {
    std::ofstream(file) << text;
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
  }

 private:
  std::string directory_;
};

TEST_F(JobSecretTest, TakesTextOfTheRightLength) {
  EXPECT_EQ(JobSecret::from_string("fifteen bytes..").status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(JobSecret::from_string("sixteen bytes...").ok());
  EXPECT_TRUE(JobSecret::from_string(std::string(4096, 'x')).ok());
  EXPECT_FALSE(JobSecret::from_string(std::string(4097, 'x')).ok());
}

TEST_F(JobSecretTest, RandomOnesDiffer) {
  EXPECT_EQ(JobSecret::random().text().size(), 64u);
  EXPECT_NE(JobSecret::random().text(), JobSecret::random().text());
}

TEST_F(JobSecretTest, AFileBringsItBack) {
  const JobSecret made = JobSecret::random();
  ASSERT_TRUE(made.write_file(path("secret")).ok());
  struct stat info {};
  ASSERT_EQ(stat(path("secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(JobSecret::from_file(path("secret"))->text(), made.text());
  // An existing file stays.
  EXPECT_FALSE(JobSecret::random().write_file(path("secret")).ok());
  EXPECT_EQ(JobSecret::from_file(path("secret"))->text(), made.text());
}

TEST_F(JobSecretTest, OneNewlineAtTheEndDoesNotCount) {
  write(path("unix"), "sixteen bytes...\n", 0600);
  write(path("dos"), "sixteen bytes...\r\n", 0400);
  write(path("none"), "sixteen bytes...", 0600);
  for (const char* name : {"unix", "dos", "none"}) {
    const Result<JobSecret> secret = JobSecret::from_file(path(name));
    ASSERT_TRUE(secret.ok()) << secret.status().message();
    EXPECT_EQ(secret->text(), "sixteen bytes...");
  }
}

TEST_F(JobSecretTest, AFileThatOthersCanUseIsRefused) {
  for (mode_t mode : {0640u, 0604u, 0620u, 0602u, 0610u, 0666u}) {
    write(path("open"), "sixteen bytes...\n", mode);
    const Status status = JobSecret::from_file(path("open")).status();
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << std::oct << mode;
    EXPECT_THAT(status.message(), HasSubstr("chmod 600"));
  }
}

TEST_F(JobSecretTest, WhatIsNoSecretFileIsRefused) {
  EXPECT_EQ(JobSecret::from_file(path("missing")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(JobSecret::from_file(path("")).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(JobSecret::from_file(path("pipe")).status().code(), StatusCode::kInvalidArgument);
  write(path("short"), "short\n", 0600);
  const Status status = JobSecret::from_file(path("short")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(path("short")));
  write(path("long"), std::string(5000, 'x'), 0600);
  EXPECT_EQ(JobSecret::from_file(path("long")).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(JobSecretTest, MovingWipesTheSource) {
  JobSecret source = JobSecret::random();
  const std::string text = source.text();
  const JobSecret target = std::move(source);
  EXPECT_EQ(target.text(), text);
  EXPECT_TRUE(source.text().empty());  // NOLINT: that is the point
}

}  // namespace
}  // namespace verbena
