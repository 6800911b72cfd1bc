#include "daemon/core/types/response.h"

namespace berth::core {

Response::Response() = default;
Response::Response(const Response& other) = default;
Response::Response(Response&& other) noexcept = default;
Response& Response::operator=(const Response& other) = default;
Response& Response::operator=(Response&& other) noexcept = default;
Response::~Response() = default;

}  // namespace berth::core
