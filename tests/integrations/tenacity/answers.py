"""One answer in the forms in which clients deliver it: returned, or carried by an exception."""

import aiohttp
import httpx
import httpx2
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from requests.structures import CaseInsensitiveDict
from yarl import URL


def of_httpx(status, headers, library=httpx):
    request = library.Request("GET", "http://test/")
    response = library.Response(status, headers=headers, request=request)
    return response, library.HTTPStatusError("told", request=request, response=response)


def of_httpx2(status, headers):
    return of_httpx(status, headers, httpx2)


def of_requests(status, headers):
    response = requests.Response()
    response.status_code = status
    response.headers = CaseInsensitiveDict(headers)
    return response, requests.HTTPError("told", response=response)


def of_aiohttp(status, headers):
    class Response:
        """As much of a ClientResponse, which has no public constructor, as shapekit reads."""

        raw_headers = tuple((name.encode(), value.encode()) for name, value in headers.items())

    Response.status = status
    info = aiohttp.RequestInfo(
        URL("http://test/"), "GET", CIMultiDictProxy(CIMultiDict()), URL("http://test/")
    )
    fields = CIMultiDict(headers)
    return Response(), aiohttp.ClientResponseError(info, (), status=status, headers=fields)


CLIENTS = [of_httpx, of_httpx2, of_requests, of_aiohttp]


def forms(status, **headers):
    """The answer in every form."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for client in CLIENTS:
        response, error = client(status, named)
        yield {"result": response}
        yield {"failure": error}
