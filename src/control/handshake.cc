#include "src/control/handshake.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

namespace verbena {

namespace {

// The listener's first encrypted byte.
constexpr std::byte kAdmitted{1};

bool is_known(Refusal refusal) {
  return (refusal >= Refusal::kNotAPeer && refusal <= Refusal::kCrowded) ||
         refusal == Refusal::kNoDescriptors;
}

EncodedPreface opening(PrefaceKind kind, uint16_t version) {
  return encode_preface({.version = version, .kind = kind, .refusal = Refusal::kNone, .body = {}});
}

}  // namespace

Handshake::Handshake(ControlRole role, FileDescriptor socket, const JobSecret& secret,
                     uint16_t version)
    : role_(role), socket_(std::move(socket)), secret_(&secret), version_(version) {
  if (role_ != ControlRole::kConnector) return;
  stream_ = std::make_unique<TlsStream>(role_, secret, socket_.get(),
                                        opening(PrefaceKind::kHello, version_));
  // The ClientHello goes out together with the preface.
  if (stream_->handshake() == TlsStream::Outcome::kFailed) refuse(Refusal::kAltered);
}

Handshake::State Handshake::advance() {
  // Where sending fails the peer may still have said why before it closed.
  if (state_ == State::kInProgress && stream_ != nullptr) stream_->flush();
  while (state_ == State::kInProgress && step()) {
  }
  return state_;
}

bool Handshake::end(State state) {
  state_ = state;
  return false;
}

bool Handshake::step() {
  switch (stage_) {
    case Stage::kPreface:
      return read_preface();
    case Stage::kTls:
      return do_tls();
    case Stage::kAdmission:
      return read_admission();
  }
  return false;
}

bool Handshake::read_preface() {
  const ssize_t got =
      recv(socket_.get(), input_.data() + input_bytes_, input_.size() - input_bytes_, MSG_DONTWAIT);
  if (got < 0 && errno == EINTR) return true;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
  if (got <= 0) return end(State::kEnded);
  input_bytes_ += static_cast<size_t>(got);
  // At the first wrong byte: garbage need not be long.
  const size_t magic_bytes = std::min(input_bytes_, kPrefaceMagic.size());
  if (std::memcmp(input_.data(), kPrefaceMagic.data(), magic_bytes) != 0) {
    refuse(Refusal::kNotAPeer);
    return false;
  }
  if (input_bytes_ < input_.size()) return true;
  Preface preface;
  decode_preface(input_, &preface);
  peer_version_ = preface.version;
  if (role_ == ControlRole::kListener) {
    take_hello(preface);
  } else {
    take_welcome(preface);
  }
  return state_ == State::kInProgress;
}

void Handshake::take_hello(const Preface& hello) {
  if (hello.version != version_) return refuse(Refusal::kWrongVersion);
  if (hello != Preface{.version = version_, .kind = PrefaceKind::kHello}) {
    return refuse(Refusal::kNotAPeer);
  }
  stream_ = std::make_unique<TlsStream>(role_, *secret_, socket_.get(),
                                        opening(PrefaceKind::kWelcome, version_));
  stream_->start_reading();
  stage_ = Stage::kTls;
}

void Handshake::take_welcome(const Preface& welcome) {
  if (welcome.kind == PrefaceKind::kRefusal && is_known(welcome.refusal)) {
    refusal_ = welcome.refusal;
    state_ = State::kRefusedByPeer;
    return;
  }
  // A later version may have reasons that this one does not know.
  if (welcome.version != version_) return refuse(Refusal::kWrongVersion);
  if (welcome != Preface{.version = version_, .kind = PrefaceKind::kWelcome}) {
    return refuse(Refusal::kNotAPeer);
  }
  stream_->start_reading();
  stage_ = Stage::kTls;
}

bool Handshake::do_tls() {
  const TlsStream::Outcome outcome = stream_->handshake();
  // What OpenSSL has to say to a connector that did not prove itself is not for it: a refusal is.
  const bool proved = outcome != TlsStream::Outcome::kFailed || spoke_;
  if (role_ == ControlRole::kListener && proved) {
    spoke_ = spoke_ || !stream_->all_sent();
    // A listener's few messages fit every socket buffer: where they do not, this peer is gone.
    if (!stream_->flush() || !stream_->all_sent()) return end(State::kEnded);
  }
  if (role_ == ControlRole::kConnector) stream_->flush();
  if (outcome != TlsStream::Outcome::kDone) return stopped_by(outcome);
  if (role_ == ControlRole::kConnector) {
    stage_ = Stage::kAdmission;
    return true;
  }
  stream_->write({&kAdmitted, 1});
  return end(stream_->flush() && stream_->all_sent() ? State::kDone : State::kEnded);
}

bool Handshake::read_admission() {
  std::byte admission{};
  size_t got = 0;
  const TlsStream::Outcome outcome = stream_->read({&admission, 1}, &got);
  if (outcome != TlsStream::Outcome::kDone) return stopped_by(outcome);
  if (admission == kAdmitted && stream_->at_record_end()) return end(State::kDone);
  refuse(Refusal::kAltered);
  return false;
}

bool Handshake::stopped_by(TlsStream::Outcome outcome) {
  if (outcome == TlsStream::Outcome::kWait) return false;
  if (outcome != TlsStream::Outcome::kFailed) return end(State::kEnded);
  // What was right once and then does not verify was altered, or recorded and played back.
  if (stream_->wrong_key() && !spoke_) {
    refuse(Refusal::kWrongSecret);
  } else if (role_ == ControlRole::kListener && !spoke_) {
    refuse(Refusal::kNotAPeer);
  } else {
    refuse(Refusal::kAltered);
  }
  return false;
}

void Handshake::refuse(Refusal refusal) {
  if (state_ != State::kInProgress) return;
  state_ = State::kRefused;
  refusal_ = refusal;
  // In TLS there is no place for it, and a connector has nobody to tell: it just leaves.
  if (role_ == ControlRole::kConnector || spoke_) return;
  const EncodedPreface bytes = encode_refusal(version_, refusal);
  // Fits an empty socket buffer; a stranger who filled it goes without the reason.
  send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Status Handshake::failure(const std::string& peer) const {
  const bool by_peer = state_ == State::kRefusedByPeer;
  switch (refusal_) {
    case Refusal::kNone:
      return Status::ok_status();
    case Refusal::kNotAPeer:
      if (by_peer) {
        return Status(StatusCode::kProtocolViolation,
                      fmt::format("{} does not recognize this side as a Verbena peer; does "
                                  "something between the two alter the bytes?",
                                  peer));
      }
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("{} is not a Verbena peer: its bytes are not the control "
                                "protocol's; is the port in use by another program?",
                                peer));
    case Refusal::kWrongVersion:
      return Status(StatusCode::kProtocolViolation,
                    fmt::format("wrong version: peer {} speaks version {} of the control protocol, "
                                "this is version {}; use the same Verbena on both sides",
                                peer, peer_version_, version_));
    case Refusal::kWrongSecret:
      return Status(StatusCode::kPermissionDenied,
                    by_peer ? fmt::format("wrong secret: {} has another job secret than this side; "
                                          "give both sides the same",
                                          peer)
                            : fmt::format("wrong secret: {} did not prove that it knows the job "
                                          "secret; give both sides the same",
                                          peer));
    case Refusal::kTooSlow:
      return Status(
          StatusCode::kTimeout,
          by_peer
              ? fmt::format(
                    "{} gave up: this side took too long for the handshake; is its CPU overloaded?",
                    peer)
              : fmt::format("{} did not finish the handshake in time", peer));
    case Refusal::kCrowded:
      return Status(StatusCode::kLimitExceeded,
                    by_peer ? fmt::format("{} has too many handshakes pending; try again", peer)
                            : fmt::format("{} had not finished its handshake when all places for "
                                          "pending handshakes were taken",
                                          peer));
    case Refusal::kNoDescriptors:
      return Status(StatusCode::kLimitExceeded,
                    by_peer ? fmt::format("{} cannot accept a connection: its process has no file "
                                          "descriptor left; raise the limit of open files there "
                                          "(ulimit -n)",
                                          peer)
                            : fmt::format("no file descriptor is left for {}; raise the limit of "
                                          "open files (ulimit -n)",
                                          peer));
    case Refusal::kAltered:
      return Status(
          StatusCode::kProtocolViolation,
          fmt::format("the handshake with {} does not verify ({}): its bytes were altered "
                      "on the way, or are a recording of another handshake",
                      peer, stream_->error().empty() ? "no admission" : stream_->error()));
  }
  return Status(StatusCode::kInternal, "a refusal without a reason");
}

}  // namespace verbena
